// The C ABI of the CPU kernels: what native.py declares and executor.py fills. Plain data, no ownership: every pointer is the caller's.
//
// A program is an array of instructions bound to memory. `qpack_run` carries it out on a team of threads; it allocates
// nothing, touches no Python object and returns when the last instruction is done.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__GNUC__)
#define QPACK_EXPORT extern "C" __attribute__((visibility("default")))
#endif

enum Dtype : int32_t { F32, BF16, F16, I32, I16, I8 };

// In the order of SIGNATURES in qpack_schemas/instructions.py; `qpack_signatures` says it as text, and native.py
// compares both when it loads the library.
enum Op : int32_t {
  ROWS_DECODE, ROWS_PREFILL, EMBED, EMBED_INT8, RMS_NORM, LINEAR_INT4, LINEAR_INT8, LINEAR, ROPE_KV_WRITE, ATTENTION,
  SILU_MUL, CAUSAL_CONV1D, GATED_DELTA, TAKE_ROWS, SAMPLE, OPS
};

constexpr int MOST_OPERANDS = 20, MOST_ATTRIBUTES = 4;

struct Tensor {     // contiguous, the last dimension fastest; data is null for an absent optional operand
  void *data;
  int64_t dims[4];  // unused ones are 1
  int32_t dtype;    // of memory; packed weights keep the dtype of their bundle tensor (see pack.h)
  int32_t rank;
};

struct Instruction {
  int32_t op;
  int32_t unused;
  Tensor operands[MOST_OPERANDS];      // inputs, updates, outputs in the order of the signature line
  double attributes[MOST_ATTRIBUTES];  // in the order of the signature line; booleans are 0 or 1
};

struct Program {
  const Instruction *code;
  int64_t count;
  uint8_t *scratch;       // at least qpack_scratch_bytes, 64-byte aligned; nothing in it outlives an instruction
  int32_t fast;           // 1: int8 activations per group of 128; 0: float32 activations
  int32_t scratch_slot;   // seat of the padding rows: the number of real slots
  int32_t active;         // written by rows_*: rows 0 .. active-1 hold every live row; those behind are padding
};

struct Team;

QPACK_EXPORT const char *qpack_signatures();               // one line per Op: name(operand,...){attribute,...}
QPACK_EXPORT const char *qpack_paths();                    // those compiled in that this host can run, best first: "avx512 avx2 portable"
QPACK_EXPORT Team *qpack_team(const char *path, int threads);  // null: unknown path, or no threads
QPACK_EXPORT void qpack_team_end(Team *team);
QPACK_EXPORT int64_t qpack_scratch_bytes(const Team *team, const Program *program);
QPACK_EXPORT void qpack_run(Team *team, Program *program);

// Into the order of pack.h, with N rounded up to 64: Marlin words int32 [K/16, 2N], N * K / 2 bytes; int8 codes [N, K],
// N * K bytes; and what groups have, N * K / 128 scales or zero points of `bytes` bytes each, [K/128, N] in Marlin's order
// or [N, K/128].
QPACK_EXPORT void qpack_pack_int4(Team *team, const int32_t *words, int64_t k, int64_t n, uint8_t *codes);
QPACK_EXPORT void qpack_pack_int8(Team *team, const int8_t *values, int64_t k, int64_t n, int8_t *codes);
QPACK_EXPORT void qpack_pack_groups(Team *team, const uint8_t *values, int bytes, int marlin, int64_t k, int64_t n, uint8_t *packed);

// Seconds to read `bytes` once with every thread: the roofline that `qpack-runtime bench` measures against.
QPACK_EXPORT double qpack_read_seconds(Team *team, const uint8_t *data, int64_t bytes);
