// What `sample` reads of a row and leaves in scratch, and steps 1 to 5 of its order in reference/sampling.py: the
// scores.

// Bits of `flags` and of `status`, and the columns of `ints` and `floats`: qpack_schemas/sampling.py.
constexpr int32_t GREEDY = 1, PENALTY = 2, BIAS = 4, GRAMMAR = 8, LOGPROBS = 16, FILTER = 32;
constexpr int32_t NONFINITE = 1, EMPTY = 2;
constexpr int64_t TOP_LOGPROBS_LIMIT = 20;
struct Ints { int32_t flags, top_k, top_p24, seed_low, seed_high, bias_count; };
struct Floats { float inverse_temperature, ln_min_p, repetition, inverse_repetition, presence, frequency; };

// A row of logits and what its slot asks for.
struct Row {
  const float *logits, *bias_values;
  const int32_t *bias_ids, *grammar;
  const int16_t *counts;
  int64_t vocab, slot;
  int32_t position;
  Ints ints;
  Floats floats;

  bool asks(int32_t flags) const { return ints.flags & flags; }
  bool untouched() const { return asks(GREEDY) && !asks(PENALTY | BIAS | GRAMMAR); }  // its scores are its logits
  int64_t end(int64_t block) const { return block * BLOCK + BLOCK < vocab ? block * BLOCK + BLOCK : vocab; }
};

// What filters keep: scores above `score`, and of those equal to it the ids up to `id`.
struct Cut {
  float score;
  int32_t id;
};

struct SampleScratch {
  int64_t blocks, chunks, bytes;
  float *scores;                   // [vocab], NaN where an id may not be chosen, and on to a multiple of WORDS
  float *peaks, *raw_peaks;        // [blocks, LANES] largest score before the temperature; largest logit
  int32_t *broken;                 // [blocks] a logit is NaN or +inf
  Candidate *candidates, *sorted;  // [blocks, BLOCK]
  int32_t *counts;                 // [blocks] candidates
  Candidate *winners;              // [blocks] with their noise; id -1 if nobody takes part
  double *sums;                    // [blocks] of e^(logit - largest logit)
  uint64_t *bins;                  // [threads, BINS] masses
  uint64_t *chunk_masses;          // [chunks]
  int32_t *chunk_tops;             // [chunks]
  struct Found {
    Cut cut;
    bool all;                      // a cut leaves all ids, and says nothing
    int32_t bin;                   // where the cut lies
    uint64_t before, kept;         // masses: of the bins before it, and of mass_kept
  } *found;

  SampleScratch(uint8_t *base, const Instruction &instruction, int threads) {
    const int64_t width = instruction.operands[0].dims[1], vocab = (int64_t)instruction.attributes[0];
    blocks = (vocab + BLOCK - 1) / BLOCK, chunks = (width + CHUNK_IDS - 1) / CHUNK_IDS;
    Scratch scratch{base};
    scores = scratch.take<float>(round_up(vocab, WORDS));
    peaks = scratch.take<float>(blocks * LANES), raw_peaks = scratch.take<float>(blocks * LANES);
    broken = scratch.take<int32_t>(blocks);
    candidates = scratch.take<Candidate>(blocks * BLOCK), sorted = scratch.take<Candidate>(blocks * BLOCK);
    counts = scratch.take<int32_t>(blocks);
    winners = scratch.take<Candidate>(blocks);
    sums = scratch.take<double>(blocks);
    bins = scratch.take<uint64_t>(threads * BINS);
    chunk_masses = scratch.take<uint64_t>(chunks), chunk_tops = scratch.take<int32_t>(chunks);
    found = scratch.take<Found>(1);
    bytes = scratch.used;
  }
};

INLINE F penalized(const Row &row, int64_t i, F y) {
  const Floats &of = row.floats;
  EACH_PART {
    int16_t seen __attribute__((vector_size(2 * WIDTH)));
    __builtin_memcpy(&seen, row.counts + i + p * WIDTH, sizeof seen);
    const Vi count = __builtin_convertvector(seen, Vi), consumed = count & (int32_t)COUNT_MASK;
    const Vf repeated = y.v[p] * (y.v[p] > 0.0f ? splat(of.inverse_repetition) : splat(of.repetition));
    y.v[p] = count != 0 ? repeated : y.v[p];
    y.v[p] -= __builtin_convertvector(consumed, Vf) * of.frequency;
    y.v[p] -= consumed > 0 ? splat(of.presence) : splat(0);
  }
  return y;
}

INLINE F restricted(const Row &row, int64_t i, F y) {
  static const int32_t bits[LANES] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  const I bit = load(bits), word = all((int32_t)((uint32_t)row.grammar[i / LINE_IDS] >> i % LINE_IDS));
  EACH_PART y.v[p] = (bit.v[p] & word.v[p]) != 0 ? y.v[p] : splat(-__builtin_inff());
  return y;
}

// Peaks, `broken` and scores of one block; no scores of a row whose scores are its logits.
INLINE void score_block(const Row &row, int64_t block, const SampleScratch &s) {
  const float infinity = __builtin_inff();
  const int64_t begin = block * BLOCK, end = row.end(block);
  const float *logits = row.logits;
  float *scores = row.untouched() ? nullptr : s.scores;
  F peak = all(-infinity);
  I broken = {};
  auto read = [&](int64_t i, F z) {
    EACH_PART broken.v[p] |= ~(z.v[p] < infinity);
    peak = max(z, peak);
    if (scores) store(scores + i, z);
  };
  int64_t i = begin;
  for (; i + LANES <= end; i += LANES) read(i, load(logits + i));
  if (i < end) read(i, keep(load(logits + i), (int)(end - i), -infinity));  // ids behind the vocabulary are forbidden
  s.broken[block] = lanes_of(broken) != 0;
  store(s.raw_peaks + block * LANES, peak);
  store(s.peaks + block * LANES, peak);
  if (!scores) return;

  if (row.asks(BIAS))
    for (int32_t entry = 0; entry < row.ints.bias_count; entry++) {
      const int64_t id = row.bias_ids[entry];
      if (id >= begin && id < end) scores[id] += row.bias_values[entry];
    }
  peak = all(-infinity);
  for (i = begin; i < end; i += LANES) {
    F y = load(scores + i);
    if (row.asks(PENALTY)) y = penalized(row, i, y);
    if (row.asks(GRAMMAR)) y = restricted(row, i, y);
    peak = max(y, peak);  // which leaves NaN out
    EACH_PART y.v[p] = y.v[p] > -infinity ? y.v[p] * row.floats.inverse_temperature : splat(__builtin_nanf(""));
    store(scores + i, y);
  }
  for (; i < round_up(end, WORDS); i += LANES) store(scores + i, all(__builtin_nanf("")));
  store(s.peaks + block * LANES, peak);
}

// The lowest id of score `best`, the largest there is.
INLINE int32_t first_of(const Row &row, const SampleScratch &s, float best) {
  const float *scores = row.untouched() ? row.logits : s.scores;
  int64_t i = -BLOCK;
  for (uint32_t here = 0; !here;) {
    i += BLOCK;
    const F peak = load(s.peaks + i / BLOCK * LANES);
    I mask;
    EACH_PART mask.v[p] = (peak.v[p] > -__builtin_inff()) & (peak.v[p] * row.floats.inverse_temperature == best);
    here = lanes_of(mask);
  }
  for (;; i += LANES) {
    const F y = load(scores + i);
    I mask;
    EACH_PART mask.v[p] = y.v[p] == best;
    if (const uint32_t here = lanes_of(mask)) return (int32_t)i + __builtin_ctz(here);
  }
}
