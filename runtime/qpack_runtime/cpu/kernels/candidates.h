// The few ids that a choice lies among, found without sorting a vocabulary: those whose score may count are collected,
// and only they are sorted. The order is score descending (-0 equals 0), id ascending.
constexpr int64_t BLOCK = 2048;  // ids at a time, and the room for their candidates

struct Candidate {
  float score;
  int32_t id;
};

// Bit i: lane i of the mask is set.
INLINE uint32_t lanes_of(I mask) {
  uint32_t bits = 0;
  EACH_PART {
#if defined(__AVX512F__)
    bits = _mm512_movepi32_mask((__m512i)mask.v[p]);
#elif defined(__AVX2__)
    bits |= (uint32_t)_mm256_movemask_ps((__m256)mask.v[p]) << p * WIDTH;
#elif defined(__SSE2__)
    bits |= (uint32_t)_mm_movemask_ps((__m128)mask.v[p]) << p * WIDTH;
#else
    for (int i = 0; i < WIDTH; i++) bits |= (uint32_t)(mask.v[p][i] & 1) << (p * WIDTH + i);
#endif
  }
  return bits;
}

INLINE I count_from(int64_t first) {
  static const int32_t lane[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(lane) + all((int32_t)first);
}

// Integers that ascend with the score, and back.
INLINE uint32_t rank_of(float score) {
  const uint32_t bits = bits_of<uint32_t>(score + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
INLINE float score_of(uint32_t rank) { return bits_of<float>(rank >> 31 ? rank & 0x7fffffffu : ~rank); }

INLINE float largest_of(const float *peaks, int64_t count) {
  F most = all(-__builtin_inff());
  for (int64_t i = 0; i < count; i += LANES) most = max(load(peaks + i), most);
  return largest(most);
}

// The k-th largest of `peaks`, a multiple of LANES of them, times `scale`; -inf if they are fewer. If each peak is the
// largest of some scores, at least k scores reach it. Found bit by bit: the largest number that k peaks reach.
INLINE float kth_largest(const float *peaks, int64_t count, float scale, int64_t k) {
  uint32_t rank = 0;
  for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
    const float least = score_of(rank | bit);  // where it is NaN, none reaches it
    I reached = {};
    for (int64_t i = 0; i < count; i += LANES) {
      const F peak = load(peaks + i);
      EACH_PART reached.v[p] -= peak.v[p] * scale >= least;
    }
    int64_t total = 0;
    EACH_PART for (int i = 0; i < WIDTH; i++) total += reached.v[p][i];
    if (total >= k) rank |= bit;
  }
  const float found = score_of(rank);
  return found == found ? found : -__builtin_inff();
}

// Writes the ids begin .. end-1 whose score is wanted(Vf) -> Vi, ascending; returns their number.
template <class Wanted>
INLINE int32_t collect(const float *scores, int64_t begin, int64_t end, Candidate *out, Wanted wanted) {
  int32_t count = 0;
  for (int64_t i = begin; i < end; i += LANES) {
    const F y = load(scores + i);
    I mask;
    EACH_PART mask.v[p] = wanted(y.v[p]);
    uint32_t bits = lanes_of(mask);
    if (end - i < LANES) bits &= (1u << (end - i)) - 1;
    for (; bits; bits &= bits - 1) {
      const int64_t id = i + __builtin_ctz(bits);
      out[count++] = {scores[id], (int32_t)id};
    }
  }
  return count;
}

// Moves the candidates of all blocks, counts[block] from BLOCK * block on, to the front; returns their number.
INLINE int64_t compact(Candidate *candidates, const int32_t *counts, int64_t blocks) {
  int64_t total = 0;
  for (int64_t block = 0; block < blocks; block++)
    for (int32_t i = 0; i < counts[block]; i++) candidates[total++] = candidates[block * BLOCK + i];
  return total;
}

// Radix sort by bytes, the lowest first: equal scores stay in the order of their ids. `other` is room for as many.
INLINE void sort(Candidate *candidates, Candidate *other, int64_t count) {
  int32_t places[4][256] = {};
  for (int64_t i = 0; i < count; i++)
    for (int byte = 0; byte < 4; byte++) places[byte][~rank_of(candidates[i].score) >> 8 * byte & 255]++;
  for (int byte = 0; byte < 4; byte++) {
    int32_t next = 0;
    for (int32_t &place : places[byte]) {
      const int32_t same = place;
      place = next, next += same;
    }
    for (int64_t i = 0; i < count; i++)
      other[places[byte][~rank_of(candidates[i].score) >> 8 * byte & 255]++] = candidates[i];
    Candidate *filled = other;
    other = candidates, candidates = filled;
  }
}
