// Log-probabilities of `sample`: of the raw logits, the token's and the likeliest ones'.

// What one block adds to the sum of e^(logit - largest), and its candidates for the likeliest, from `least` on.
INLINE void sum_block(const Row &row, int64_t block, const SampleScratch &s, float largest, float least) {
  const int64_t begin = block * BLOCK, end = row.end(block);
  F sums[4] = {};
  for (int64_t i = begin; i < end; i += LANES) {
    const F z = load(row.logits + i);
    F &mine = sums[i / LANES % 4];
    mine = mine + exp((end - i < LANES ? keep(z, (int)(end - i), -__builtin_inff()) : z) - all(largest));
  }
  s.sums[block] = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  s.counts[block] = collect(row.logits, begin, end, s.candidates + begin, [&](Vf z) { return z >= least; });
}

// log x of a positive normal number, within 1e-15: x = 2^e m with m around 1, log m = 2 artanh((m - 1) / (m + 1)).
INLINE double natural_log(double x) {
  const uint64_t bits = bits_of<uint64_t>(x);
  const int64_t exponent = (int64_t)(bits - 0x3fe6a09e667f3bcd) >> 52;  // sqrt(1/2), so that m lies around 1
  const double m = bits_of<double>(bits - ((uint64_t)exponent << 52)), ratio = (m - 1) / (m + 1);
  double series = 0;
  for (int term = 23; term > 0; term -= 2) series = series * (ratio * ratio) + 1.0 / term;
  return (double)exponent * 0.6931471805599453 + 2 * ratio * series;
}

// Sums and candidates of a row, for write_logprobs. All threads; `largest` is the row's largest logit.
INLINE void sum_row(const Call &call, const Row &row, const SampleScratch &s, float largest) {
  const float least = kth_largest(s.raw_peaks, s.blocks * LANES, 1, TOP_LOGPROBS_LIMIT);
  call.worker.parallel(s.blocks, call.worker.grain(s.blocks), [&](int64_t block) {
    sum_block(row, block, s, largest, least);
  });
}

// One thread. top_ids and top_logprobs hold zeros.
INLINE void write_logprobs(const Row &row, const SampleScratch &s, float largest, int32_t token, float *logprob,
                           int32_t *top_ids, float *top_logprobs) {
  double sum = 0;
  for (int64_t block = 0; block < s.blocks; block++) sum += s.sums[block];
  const double log_sum = natural_log(sum);
  auto of = [&](float logit) { return (float)((double)logit - (double)largest - log_sum); };
  *logprob = of(row.logits[token]);
  const int64_t count = compact(s.candidates, s.counts, s.blocks);
  sort(s.candidates, s.sorted, count);
  for (int64_t i = 0; i < TOP_LOGPROBS_LIMIT && i < count; i++)
    top_ids[i] = s.candidates[i].id, top_logprobs[i] = of(s.candidates[i].score);
}
