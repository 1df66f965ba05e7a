// A code path: every instruction, compiled for one instruction set.
#pragma once
#include "api.h"
#include "threads.h"

struct Path {
  const char *name;
  void (*run[OPS])(const Instruction &, Program &, Worker &);
  int64_t (*scratch_bytes)(const Instruction &, int threads, bool fast);
  void (*pack_int4)(const int32_t *words, int64_t k, int64_t n, int64_t tile, uint8_t *codes);
  void (*pack_int8)(const int8_t *values, int64_t k, int64_t n, int64_t tile, int8_t *codes);
  void (*pack_groups)(const uint8_t *values, int bytes, bool marlin, int64_t k, int64_t n, int64_t tile, uint8_t *packed);
  uint64_t (*read)(const uint8_t *data, int64_t bytes);  // a sum that depends on every byte
};
