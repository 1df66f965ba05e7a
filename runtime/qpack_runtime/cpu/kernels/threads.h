// Threads that carry out one phase after the other. Every phase ends with a barrier, so what one thread
// wrote in a phase all threads may read in the next.
#pragma once
#include <cstdint>

class Threads;

class Worker {
 public:
  int index;    // 0 is the thread that called qpack_run
  int threads;

  // Calls body(item) for every item 0 .. items-1, each once, by whichever thread is free; runs of `grain` neighbours stay
  // together. What an item computes must not depend on the thread.
  template <class Body>
  void parallel(int64_t items, int64_t grain, Body body) {
    for (int64_t begin, end; claim(items, grain, begin, end);)
      for (int64_t item = begin; item < end; item++) body(item);
    barrier();
  }

  // Calls body() on one thread.
  template <class Body>
  void serial(Body body) {
    if (index == 0) body();
    barrier();
  }

  // A grain that gives every thread about eight turns, so that a thread held up by the system does not hold up all.
  int64_t grain(int64_t items) const { return items / (8 * threads) > 1 ? items / (8 * threads) : 1; }

 private:
  friend class Threads;
  Threads *team;
  bool claim(int64_t items, int64_t grain, int64_t &begin, int64_t &end);
  void barrier();
};

// What every worker runs; returns when the job is done, with a barrier as its last act.
using Job = void (*)(void *context, Worker &worker);

Threads *start_threads(int count);  // null if the system gives no threads
void end_threads(Threads *threads);
void run_on(Threads *threads, Job job, void *context);
int count_of(const Threads *threads);
