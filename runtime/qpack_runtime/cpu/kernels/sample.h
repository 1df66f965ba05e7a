// `sample` as reference/sampling.py defines it: the same ids, to the bit. One row after the other, all threads on each,
// since a row is a vocabulary wide. It is gone over in blocks, and what is found of a block does not depend on who
// finds it.
#include "philox.h"
#include "candidates.h"
#include "masses.h"
#include "sample_scores.h"
#include "sample_cut.h"
#include "sample_draw.h"
#include "sample_logprobs.h"

INLINE Row row_of(const Call &call, int64_t t) {
  enum { LOGITS, SLOTS, POSITIONS, LAST, INTS, FLOATS, BIAS_IDS, BIAS_VALUES, ALLOWED, COUNTS };
  const int32_t *last = call.data<int32_t>(LAST);
  const int64_t at = last ? last[t] : t, slot = call.data<int32_t>(SLOTS)[at];
  const int64_t width = call.operand(LOGITS).dims[1], entries = call.operand(BIAS_IDS).dims[1];
  return {
    .logits = call.data<float>(LOGITS) + t * width,
    .bias_values = call.data<float>(BIAS_VALUES) + slot * entries,
    .bias_ids = call.data<int32_t>(BIAS_IDS) + slot * entries,
    .grammar = call.data<int32_t>(ALLOWED) + slot * (width / LINE_IDS),
    .counts = call.data<int16_t>(COUNTS) + slot * width,
    .vocab = (int64_t)call.attribute(0),
    .slot = slot,
    .position = call.data<int32_t>(POSITIONS)[at],
    .ints = call.data<Ints>(INTS)[slot],
    .floats = call.data<Floats>(FLOATS)[slot],
  };
}

INLINE void sample(const Call &call) {
  enum { SLOT_TOKEN = 10, SLOT_POSITION, IDS, STATUS, LOGPROB, TOP_IDS, TOP_LOGPROBS };
  const SampleScratch s(call.scratch(), call.instruction, call.worker.threads);
  for (int64_t t = 0, rows = call.rows(call.operand(0)); t < rows; t++) {
    const Row row = row_of(call, t);
    float *logprob = call.data<float>(LOGPROB) + t;
    int32_t *top_ids = call.data<int32_t>(TOP_IDS) + t * TOP_LOGPROBS_LIMIT;
    float *top_logprobs = call.data<float>(TOP_LOGPROBS) + t * TOP_LOGPROBS_LIMIT;
    auto write = [&](int32_t id, int32_t status) {
      call.data<int32_t>(IDS)[t] = id, call.data<int32_t>(STATUS)[t] = status, *logprob = 0;
      __builtin_memset(top_ids, 0, TOP_LOGPROBS_LIMIT * sizeof *top_ids);
      __builtin_memset(top_logprobs, 0, TOP_LOGPROBS_LIMIT * sizeof *top_logprobs);
    };
    if (row.slot == call.program.scratch_slot) {
      call.worker.serial([&] { write(0, 0); });
      continue;
    }
    call.worker.parallel(s.blocks, call.worker.grain(s.blocks), [&](int64_t block) { score_block(row, block, s); });

    // Every thread works out the same between two phases.
    bool broken = false;
    for (int64_t block = 0; block < s.blocks; block++) broken |= s.broken[block] != 0;
    const float peak = largest_of(s.peaks, s.blocks * LANES), best = peak * row.floats.inverse_temperature;
    if (broken || peak == -__builtin_inff()) {
      call.worker.serial([&] { write(0, broken ? NONFINITE : EMPTY); });
      continue;
    }
    int32_t token = 0;
    if (!row.asks(GREEDY)) token = draw(call, row, s, cut_of(call, row, s, best), best);
    const float largest_logit = largest_of(s.raw_peaks, s.blocks * LANES);
    if (row.asks(LOGPROBS)) sum_row(call, row, s, largest_logit);
    call.worker.serial([&] {
      if (row.asks(GREEDY)) token = first_of(row, s, best);
      write(token, 0);
      if (row.asks(LOGPROBS)) write_logprobs(row, s, largest_logit, token, logprob, top_ids, top_logprobs);
      call.data<int32_t>(SLOT_TOKEN)[row.slot] = token;
      call.data<int32_t>(SLOT_POSITION)[row.slot] = row.position + 1;
    });
  }
}

int64_t sample_scratch(const Instruction &instruction, int threads) {
  return SampleScratch(nullptr, instruction, threads).bytes;
}
