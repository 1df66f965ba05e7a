// Step 9 of `sample`: the largest score with noise. Noise is worked out for the ids that may still win, words for their
// neighbourhood.

// The winner of one block. None lies below `bar`, which rises.
INLINE Candidate draw_block(const Row &row, int64_t block, const SampleScratch &s, Cut cut, float &bar) {
  const Key key = {(uint32_t)row.ints.seed_low, (uint32_t)row.ints.seed_high};
  F most = all(-__builtin_inff());
  I chosen = all(-1);
  for (int64_t first = block * BLOCK; first < row.end(block); first += WORDS) {
    I possible[WORDS / LANES], any = {};
    for (int part = 0; part < WORDS / LANES; part++) {
      const F y = load(s.scores + first + part * LANES);
      const I ids = count_from(first + part * LANES);
      EACH_PART {
        const Vi kept = (y.v[p] > cut.score) | ((y.v[p] == cut.score) & (ids.v[p] <= cut.id));
        possible[part].v[p] = kept & (y.v[p] + NOISE_MOST >= bar);
        any.v[p] |= possible[part].v[p];
      }
    }
    if (!lanes_of(any)) continue;
    Vu words[WORDS / LANES][PARTS];
    words_of(first, row.position, key, words);
    for (int part = 0; part < WORDS / LANES; part++) {
      const F y = load(s.scores + first + part * LANES);
      const I ids = count_from(first + part * LANES);
      I able = possible[part];
      EACH_PART able.v[p] &= y.v[p] + noise_at_most(words[part][p]) >= bar;
      if (!lanes_of(able)) continue;
      EACH_PART {
        const Vf score = y.v[p] + gumbel_of_words(words[part][p]);
        const Vi better = able.v[p] & ((score > most.v[p]) | (chosen.v[p] < 0));
        most.v[p] = better ? score : most.v[p];
        chosen.v[p] = better ? ids.v[p] : chosen.v[p];
      }
      const float reached = largest(most);
      bar = reached > bar ? reached : bar;
    }
  }
  float scores[LANES];
  int32_t ids[LANES];
  store(scores, most), store(ids, chosen);
  Candidate winner = {0, -1};
  for (int lane = 0; lane < LANES; lane++) {
    const bool higher = winner.id < 0 || scores[lane] > winner.score;
    if (ids[lane] >= 0 && (higher || (scores[lane] == winner.score && ids[lane] < winner.id)))
      winner = {scores[lane], ids[lane]};
  }
  return winner;
}

INLINE int32_t draw(const Call &call, const Row &row, const SampleScratch &s, Cut cut, float best) {
  float bar = best + NOISE_LEAST;  // the best is always kept
  call.worker.parallel(s.blocks, call.worker.grain(s.blocks), [&](int64_t block) {
    s.winners[block] = draw_block(row, block, s, cut, bar);
  });
  Candidate winner = {0, -1};
  for (int64_t block = 0; block < s.blocks; block++) {
    const Candidate &other = s.winners[block];
    if (other.id >= 0 && (winner.id < 0 || other.score > winner.score)) winner = other;
  }
  return winner.id;
}
