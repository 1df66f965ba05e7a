#include "api.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <string>

#include "path.h"
#include "processor.h"
#include "threads.h"

extern const Path path_portable;
#ifdef QPACK_HAVE_AVX512
extern const Path path_avx512;
#endif
#ifdef QPACK_HAVE_AVX2
extern const Path path_avx2;
#endif
#ifdef QPACK_HAVE_NEON
extern const Path path_neon;
#endif

namespace {

struct Choice {
  const Path *path;
  bool runs;
};

// Best first. What this host can run is asked of the processor, never of how the library was built.
const Choice *choices(int &count) {
  static const Choice all[] = {
#ifdef QPACK_HAVE_AVX512
      {&path_avx512, processor::runs_v4_vnni()},
#endif
#ifdef QPACK_HAVE_AVX2
      {&path_avx2, processor::runs_v3()},
#endif
#ifdef QPACK_HAVE_NEON
      {&path_neon, processor::runs_neon()},
#endif
      {&path_portable, true},
  };
  count = sizeof all / sizeof *all;
  return all;
}

}  // namespace

struct Team {
  Threads *threads;
  const Path *path;
};

namespace {

template <class Body>
void for_each(Team *team, int64_t items, Body body) {
  struct Context {
    int64_t items;
    Body body;
  } context{items, body};
  auto job = [](void *context, Worker &worker) {
    Context mine = *static_cast<Context *>(context);
    worker.parallel(mine.items, worker.grain(mine.items), mine.body);
  };
  run_on(team->threads, job, &context);
}

}  // namespace

const char *qpack_signatures() {
  return "rows_decode(slots,slot_token,slot_position,counts,tokens,positions){}\n"
         "rows_prefill(prompt,slot,start,length,counts,tokens,slots,positions,last){}\n"
         "embed(tokens,table,y){}\n"
         "embed_int8(tokens,table,scale,y){}\n"
         "rms_norm(x,delta,weight,y,sum){eps,unit_offset}\n"
         "linear_int4(x,q,scale,zero,bias,y){}\n"
         "linear_int8(x,q,scale,bias,y){}\n"
         "linear(x,weight,bias,y){}\n"
         "rope_kv_write(x,rope,q_norm,k_norm,slots,positions,k,v,q){context,eps,unit_offset}\n"
         "attention(q,slots,positions,k,v,gate,y){context}\n"
         "silu_mul(x,y){}\n"
         "causal_conv1d(x,weight,slots,positions,ring,y){}\n"
         "gated_delta(u,x,z,ba,a_log,dt_bias,norm,slots,positions,memory,y){eps}\n"
         "take_rows(x,rows,y){}\n"
         "sample(logits,slots,positions,last,ints,floats,bias_ids,bias_values,grammar,counts,slot_token,slot_position,"
         "ids,status,logprobs,top_ids,top_logprobs){vocab}\n";
}

const char *qpack_paths() {
  static const std::string names = [] {
    std::string text;
    int count;
    const Choice *all = choices(count);
    for (int i = 0; i < count; i++)
      if (all[i].runs) text.append(text.empty() ? "" : " ").append(all[i].path->name);
    return text;
  }();
  return names.c_str();
}

Team *qpack_team(const char *path, int threads) {
  int count;
  const Choice *all = choices(count);
  for (int i = 0; i < count; i++) {
    if (!all[i].runs || std::strcmp(all[i].path->name, path) != 0) continue;
    Threads *started = start_threads(threads);
    return started ? new Team{started, all[i].path} : nullptr;
  }
  return nullptr;
}

void qpack_team_end(Team *team) {
  end_threads(team->threads);
  delete team;
}

int64_t qpack_scratch_bytes(const Team *team, const Program *program) {
  int64_t most = 64;
  for (int64_t i = 0; i < program->count; i++) {
    int64_t bytes = team->path->scratch_bytes(program->code[i], count_of(team->threads), program->fast);
    most = bytes > most ? bytes : most;
  }
  return most;
}

void qpack_run(Team *team, Program *program) {
  struct Context {
    const Path *path;
    Program *program;
  } context{team->path, program};
  auto job = [](void *context, Worker &worker) {
    auto [path, program] = *static_cast<Context *>(context);
    for (int64_t i = 0, count = program->count; i < count; i++)
      path->run[program->code[i].op](program->code[i], *program, worker);
  };
  run_on(team->threads, job, &context);
}

void qpack_pack_int4(Team *team, const int32_t *words, int64_t k, int64_t n, uint8_t *codes) {
  for_each(team, n / 64, [=](int64_t tile) { team->path->pack_int4(words, k, n, tile, codes); });
}

void qpack_pack_int8(Team *team, const int8_t *values, int64_t k, int64_t n, int8_t *codes) {
  for_each(team, (n + 63) / 64, [=](int64_t tile) { team->path->pack_int8(values, k, n, tile, codes); });
}

void qpack_pack_groups(Team *team, const uint8_t *values, int bytes, int marlin, int64_t k, int64_t n, uint8_t *packed) {
  for_each(team, (n + 63) / 64, [=](int64_t tile) { team->path->pack_groups(values, bytes, marlin, k, n, tile, packed); });
}

double qpack_read_seconds(Team *team, const uint8_t *data, int64_t bytes) {
  constexpr int64_t PIECE = 1 << 20;
  struct Context {
    const Path *path;
    const uint8_t *data;
    int64_t pieces;
    std::atomic<uint64_t> sum;
  } context{team->path, data, bytes / PIECE, {}};
  auto job = [](void *context, Worker &worker) {
    auto &[path, data, pieces, sum] = *static_cast<Context *>(context);
    uint64_t mine = 0;
    worker.parallel(pieces, worker.grain(pieces), [&](int64_t piece) { mine += path->read(data + piece * PIECE, PIECE); });
    sum.fetch_add(mine, std::memory_order_relaxed);
    worker.serial([] {});
  };
  auto begin = std::chrono::steady_clock::now();
  run_on(team->threads, job, &context);
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  // The sum is looked at so that no compiler leaves the reading out.
  return context.sum.load() == ~uint64_t{0} ? -1 : seconds.count();
}
