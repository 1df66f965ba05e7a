#include "threads.h"

#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

void breathe() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // as long as x86's pause; `yield` does nothing on most cores
#endif
}

// A step has hundreds of barriers of a microsecond each, so waiting spins first. It sleeps when the wait is so long that
// the core is better left to others: about 50 us, which is also the host's work between two steps.
constexpr int SPINS = 2000;

void wait_while(const std::atomic<uint32_t> &word, uint32_t value) {
  for (int i = 0; i < SPINS; i++) {
    if (word.load(std::memory_order_acquire) != value) return;
    breathe();
  }
  while (word.load(std::memory_order_acquire) == value) word.wait(value, std::memory_order_acquire);
}

}  // namespace

class Threads {
 public:
  explicit Threads(int count) {
    for (int i = 0; i < count; i++) {
      Worker &worker = workers.emplace_back();
      worker.index = i, worker.threads = count, worker.team = this;
    }
  }

  void start() {
    for (size_t i = 1; i < workers.size(); i++) threads.emplace_back([this, i] { serve(workers[i]); });
  }

  void end() {
    ending = true;
    announce();
    for (auto &thread : threads) thread.join();
  }

  void run(Job next_job, void *next_context) {
    job = next_job, context = next_context;
    announce();
    job(context, workers[0]);
  }

  bool claim(int64_t items, int64_t grain, int64_t &begin, int64_t &end) {
    begin = next.fetch_add(grain, std::memory_order_relaxed);
    end = begin + grain < items ? begin + grain : items;
    return begin < items;
  }

  void barrier() {
    uint32_t now = phase.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < count()) return wait_while(phase, now);
    arrived.store(0, std::memory_order_relaxed);
    next.store(0, std::memory_order_relaxed);
    phase.store(now + 1, std::memory_order_release);
    phase.notify_all();
  }

  int count() const { return static_cast<int>(workers.size()); }

 private:
  std::vector<Worker> workers;
  std::vector<std::thread> threads;
  Job job = nullptr;
  void *context = nullptr;
  bool ending = false;
  // Each on a line of its own: all threads write `next` and `arrived` while others read `phase`.
  alignas(128) std::atomic<int64_t> next{0};       // the first item of this phase that nobody has claimed
  alignas(128) std::atomic<int> arrived{0};        // at the barrier that ends it
  alignas(128) std::atomic<uint32_t> phase{0};     // how many have ended
  alignas(128) std::atomic<uint32_t> jobs{0};      // how many have been started

  void announce() {
    jobs.fetch_add(1, std::memory_order_release);
    jobs.notify_all();
  }

  void serve(Worker &worker) {
    for (uint32_t seen = 0;; seen++) {
      wait_while(jobs, seen);
      if (ending) return;
      job(context, worker);
    }
  }
};

bool Worker::claim(int64_t items, int64_t grain, int64_t &begin, int64_t &end) {
  return team->claim(items, grain, begin, end);
}
void Worker::barrier() { team->barrier(); }

Threads *start_threads(int count) {
  Threads *threads = new Threads(count);
  try {
    threads->start();
    return threads;
  } catch (const std::system_error &) {  // the system gives no more threads
    end_threads(threads);
    return nullptr;
  }
}

void end_threads(Threads *threads) {
  threads->end();
  delete threads;
}

void run_on(Threads *threads, Job job, void *context) { threads->run(job, context); }
int count_of(const Threads *threads) { return threads->count(); }
