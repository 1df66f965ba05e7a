// Steps 6 to 8 of `sample`. Each filter keeps a prefix of the order (score descending, id ascending), so that together
// they are one Cut, and no more than the ids around it are ever sorted.

// Collects the ids of a row whose score is wanted(Vf) -> Vi.
template <class Wanted>
INLINE void collect_row(const Call &call, const Row &row, const SampleScratch &s, Wanted wanted) {
  call.worker.parallel(s.blocks, call.worker.grain(s.blocks), [&](int64_t block) {
    const int64_t begin = block * BLOCK;
    s.counts[block] = collect(s.scores, begin, row.end(block), s.candidates + begin, wanted);
  });
}

// Step 6, and step 7 within what it leaves. Fewer than top_k ids: found->all.
INLINE void cut_by_count(const Call &call, const Row &row, const SampleScratch &s, float best) {
  const int64_t k = row.ints.top_k;
  const float least = kth_largest(s.peaks, s.blocks * LANES, row.floats.inverse_temperature, k);
  collect_row(call, row, s, [&](Vf y) { return y >= least; });
  call.worker.serial([&] {
    const int64_t count = compact(s.candidates, s.counts, s.blocks);
    s.found->all = count < k;
    if (count < k) return;
    sort(s.candidates, s.sorted, count);
    int64_t last = k - 1;
    if (row.ints.top_p24 < TOP_P_ONE) {
      const int32_t top = exponent_of(best);
      uint64_t whole = 0, before = 0;
      for (int64_t i = 0; i < k; i++) whole += mass_of(s.candidates[i].score, top);
      const uint64_t kept = mass_kept(whole, row.ints.top_p24);
      for (last = -1; last < k - 1 && before < kept;) before += mass_of(s.candidates[++last].score, top);
    }
    s.found->cut = {s.candidates[last].score, s.candidates[last].id};
  });
}

// The mass of one chunk, in units of its own largest exponent, and what it adds to the bins of the row.
INLINE void weigh_chunk(const Row &row, int64_t chunk, const SampleScratch &s, float best, uint64_t *bins) {
  const int32_t top = exponent_of(best);
  const int64_t step = s.chunks * LINE_IDS;
  F peak = all(-__builtin_inff());
  for (int64_t line = chunk * LINE_IDS; line < row.vocab; line += step)
    peak = max(load(s.scores + line), max(load(s.scores + line + LANES), peak));
  const int32_t chunk_top = exponent_of(largest(peak));
  Vq sum = {};
  for (int64_t line = chunk * LINE_IDS; line < row.vocab; line += step)
    for (int64_t i = line; i < line + LINE_IDS; i += LANES) {
      const F y = load(s.scores + i);
      EACH_PART {
        const Power power = exponential(y.v[p]);
        const Vi bin = bin_of(y.v[p], best);
        Vq even, odd;
        masses(power, chunk_top, even, odd);
        sum += even + odd;
        masses(power, top, even, odd);
        for (int lane = 0; lane < WIDTH / 2; lane++) {
          bins[bin[2 * lane]] += even[lane];
          bins[bin[2 * lane + 1]] += odd[lane];
        }
      }
    }
  s.chunk_tops[chunk] = chunk_top, s.chunk_masses[chunk] = 0;
  for (int lane = 0; lane < WIDTH / 2; lane++) s.chunk_masses[chunk] += sum[lane];
}

// Step 7 of all ids: the bin in which the mass before reaches what is kept, and there the id.
INLINE void cut_by_mass(const Call &call, const Row &row, const SampleScratch &s, float best) {
  const int32_t top = exponent_of(best);
  uint64_t *mine = s.bins + call.worker.index * BINS;
  __builtin_memset(mine, 0, BINS * sizeof *mine);
  call.worker.parallel(s.chunks, 1, [&](int64_t chunk) { weigh_chunk(row, chunk, s, best, mine); });
  call.worker.serial([&] {
    uint64_t whole = 0, before = 0, mass = 0;
    for (int64_t chunk = 0; chunk < s.chunks; chunk++) {
      const uint32_t away = (uint32_t)top - (uint32_t)s.chunk_tops[chunk];
      whole += s.chunk_masses[chunk] >> (away < 63 ? away : 63);
    }
    const uint64_t kept = mass_kept(whole, row.ints.top_p24);
    int32_t bin = -1;
    while (before + mass < kept && ++bin < BINS) {
      before += mass, mass = 0;
      for (int thread = 0; thread < call.worker.threads; thread++) mass += s.bins[thread * BINS + bin];
    }
    *s.found = {.cut = {}, .all = bin == BINS, .bin = bin, .before = before, .kept = kept};
  });
  if (s.found->all) return;
  const int32_t bin = s.found->bin;
  collect_row(call, row, s, [&](Vf y) { return bin_of(y, best) == bin; });  // NaN weighs nothing
  call.worker.serial([&] {
    sort(s.candidates, s.sorted, compact(s.candidates, s.counts, s.blocks));
    const Candidate *last = s.candidates - 1;
    for (uint64_t before = s.found->before; before < s.found->kept;) before += mass_of((++last)->score, top);
    s.found->cut = {last->score, last->id};
  });
}

INLINE Cut cut_of(const Call &call, const Row &row, const SampleScratch &s, float best) {
  Cut cut = {-__builtin_inff(), INT32_MAX};
  if (!row.asks(FILTER)) return cut;
  bool all = true;
  if (row.ints.top_k > 0) {
    cut_by_count(call, row, s, best);
    all = s.found->all;
  }
  if (all && row.ints.top_p24 < TOP_P_ONE) {
    cut_by_mass(call, row, s, best);
    all = s.found->all;
  }
  if (!all) cut = s.found->cut;
  const float least = best + row.floats.ln_min_p;
  if (least != least) return {best, first_of(row, s, best)};  // inf - inf: the first alone
  return least > cut.score ? Cut{least, INT32_MAX} : cut;
}
