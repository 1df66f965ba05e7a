// Compiled once per code path, with that path's instruction set and QPACK_PATH as its name. Everything lies in an unnamed
// namespace and nothing of the standard library is used: a function that two paths shared would be linked once, with the
// instructions of either.
#include "path.h"

#if defined(__x86_64__)
#if !defined(__clang__)  // GCC's own header leaves lanes undefined that a mask of ones replaces
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace {

#include "lanes.h"
#include "call.h"
#include "pack.h"
#include "norm.h"
#include "activations.h"
#include "dot.h"
#include "rows.h"
#include "linear_quantized.h"
#include "linear.h"
#include "rope.h"
#include "attention.h"
#include "convolution.h"
#include "delta.h"
#include "sample.h"

template <void (*body)(const Call &)>
void run(const Instruction &instruction, Program &program, Worker &worker) {
  body(Call{instruction, program, worker});
}

int64_t scratch_bytes(const Instruction &instruction, int threads, bool fast) {
  switch (instruction.op) {
    case LINEAR_INT4:
    case LINEAR_INT8: return activations_scratch(instruction.operands[0], threads, fast);
    case LINEAR: return linear_scratch(instruction);
    case ATTENTION: return attention_scratch(instruction, threads);
    case GATED_DELTA: return gated_delta_scratch(instruction, threads);
    case SAMPLE: return sample_scratch(instruction, threads);
    default: return 0;
  }
}

void pack_int4(const int32_t *words, int64_t k, int64_t n, int64_t tile, uint8_t *codes) {
  for (int64_t group = 0, groups = k / GROUP; group < groups; group++)
    pack_int4_group(words, n, tile, group, codes + (tile * groups + group) * INT4_GROUP);
}

void pack_int8(const int8_t *values, int64_t k, int64_t n, int64_t tile, int8_t *codes) {
  for (int64_t group = 0, groups = k / GROUP; group < groups; group++)
    pack_int8_group(values, k, n, tile, group, codes + (tile * groups + group) * INT8_GROUP);
}

void pack_groups(const uint8_t *values, int bytes, bool marlin, int64_t k, int64_t n, int64_t tile, uint8_t *packed) {
  for (int64_t group = 0, groups = k / GROUP; group < groups; group++)
    pack_group_values(values, bytes, marlin, k, n, tile, group, packed + (tile * groups + group) * BLOCKS * LANES * bytes);
}

uint64_t read(const uint8_t *data, int64_t bytes) {
  I sums[4] = {};
  for (int64_t at = 0; at + 256 <= bytes; at += 256)
    for (int i = 0; i < 4; i++) sums[i] = sums[i] + load((const int32_t *)(data + at) + LANES * i);
  int32_t lanes[LANES];
  store(lanes, sums[0] + sums[1] + sums[2] + sums[3]);
  uint64_t sum = 0;
  for (int32_t lane : lanes) sum += (uint32_t)lane;
  return sum;
}

}  // namespace

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define JOIN_OF(a, b) a##b
#define JOIN(a, b) JOIN_OF(a, b)

// In the order of Op.
extern const Path JOIN(path_, QPACK_PATH);
const Path JOIN(path_, QPACK_PATH) = {
  TEXT(QPACK_PATH),
  {run<rows_decode>, run<rows_prefill>, run<embed>, run<embed_int8>, run<rms_norm>, run<linear_int4>, run<linear_int8>,
   run<linear>, run<rope_kv_write>, run<attention>, run<silu_mul>, run<causal_conv1d>, run<gated_delta>, run<take_rows>,
   run<sample>},
  scratch_bytes, pack_int4, pack_int8, pack_groups, read,
};
