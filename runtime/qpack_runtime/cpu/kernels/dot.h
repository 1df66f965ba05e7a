// The inner products of one group: sixteen outputs, M rows, 128 inputs. Integer sums are exact, so every path and every
// M gives the same; float sums go over k in ascending order, one fused step each.

// Adds to sums[m], per output lane, the products of a line of weights (four neighbouring k of sixteen outputs) with
// x[m][0..3]. UNSIGNED: weights are 0 .. 15; otherwise they are -127 .. 127.
#if defined(__AVX512VNNI__)
constexpr int INT8_OFFSET = 128;  // what vpdpbusd, which wants unsigned weights, adds to each of them
struct Line { __m512i bytes; };
INLINE Line low_codes(const uint8_t *p) { return {_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(15))}; }
INLINE Line high_codes(const uint8_t *p) {
  return {_mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(p), 4), _mm512_set1_epi8(15))};
}
INLINE Line int8_codes(const int8_t *p) {
  return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8((char)0x80))};
}
template <bool UNSIGNED>
INLINE void multiply_add(I &sum, const Line &w, const int8_t *x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  sum.v[0] = (Vi)_mm512_dpbusd_epi32((__m512i)sum.v[0], w.bytes, _mm512_set1_epi32(four));
}
#elif defined(__AVX2__)
constexpr int INT8_OFFSET = 0;
struct Line { __m256i bytes[2]; };
INLINE Line low_codes(const uint8_t *p) {
  Line line;
  for (int i = 0; i < 2; i++) line.bytes[i] = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)p + i), _mm256_set1_epi8(15));
  return line;
}
INLINE Line high_codes(const uint8_t *p) {
  Line line;
  for (int i = 0; i < 2; i++)
    line.bytes[i] = _mm256_and_si256(_mm256_srli_epi16(_mm256_loadu_si256((const __m256i *)p + i), 4), _mm256_set1_epi8(15));
  return line;
}
INLINE Line int8_codes(const int8_t *p) {
  return {{_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)}};
}
// vpmaddubsw saturates at 2^15: 2 * 15 * 127 and, since no code is -128, 2 * 127 * 127 stay below.
template <bool UNSIGNED>
INLINE void multiply_add(I &sum, const Line &w, const int8_t *x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  const __m256i xs = _mm256_set1_epi32(four);
  for (int i = 0; i < 2; i++) {
    const __m256i pairs = UNSIGNED ? _mm256_maddubs_epi16(w.bytes[i], xs)
                                   : _mm256_maddubs_epi16(_mm256_abs_epi8(w.bytes[i]), _mm256_sign_epi8(xs, w.bytes[i]));
    sum.v[i] += (Vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
}
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int INT8_OFFSET = 0;
struct Line { int8x16_t bytes[4]; };
INLINE Line low_codes(const uint8_t *p) {
  Line line;
  for (int i = 0; i < 4; i++) line.bytes[i] = vreinterpretq_s8_u8(vandq_u8(vld1q_u8(p + 16 * i), vdupq_n_u8(15)));
  return line;
}
INLINE Line high_codes(const uint8_t *p) {
  Line line;
  for (int i = 0; i < 4; i++) line.bytes[i] = vreinterpretq_s8_u8(vshrq_n_u8(vld1q_u8(p + 16 * i), 4));
  return line;
}
INLINE Line int8_codes(const int8_t *p) {
  Line line;
  for (int i = 0; i < 4; i++) line.bytes[i] = vld1q_s8(p + 16 * i);
  return line;
}
template <bool UNSIGNED>
INLINE void multiply_add(I &sum, const Line &w, const int8_t *x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  const int8x16_t xs = vreinterpretq_s8_s32(vdupq_n_s32(four));
  for (int i = 0; i < 4; i++) sum.v[i] = (Vi)vdotq_s32((int32x4_t)sum.v[i], w.bytes[i], xs);
}
#else
constexpr int INT8_OFFSET = 0;
struct Line { int8_t bytes[64]; };
INLINE Line low_codes(const uint8_t *p) {
  Line line;
  for (int i = 0; i < 64; i++) line.bytes[i] = p[i] & 15;
  return line;
}
INLINE Line high_codes(const uint8_t *p) {
  Line line;
  for (int i = 0; i < 64; i++) line.bytes[i] = (int8_t)(p[i] >> 4);
  return line;
}
INLINE Line int8_codes(const int8_t *p) {
  Line line;
  __builtin_memcpy(line.bytes, p, 64);
  return line;
}
template <bool UNSIGNED>
INLINE void multiply_add(I &sum, const Line &w, const int8_t *x) {
  int32_t lanes[LANES];
  __builtin_memcpy(lanes, &sum, sizeof lanes);
  for (int lane = 0; lane < LANES; lane++)
    for (int j = 0; j < 4; j++) lanes[lane] += w.bytes[4 * lane + j] * x[j];
  __builtin_memcpy(&sum, lanes, sizeof lanes);
}
#endif

// Weights of sixteen outputs at one k, as numbers.
#if defined(__AVX512F__)
// A code picks its value from a table of sixteen; the other bits of the index are ignored.
INLINE F int4_values(const uint8_t *line, int nibble) {
  const __m512 table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return {{_mm512_permutexvar_ps(_mm512_srli_epi32(_mm512_loadu_si512(line), 4 * nibble), table)}};
}
#else
INLINE F int4_values(const uint8_t *line, int nibble) {
  I words = load((const int32_t *)line);
  EACH_PART words.v[p] = (Vi)(((Vu)words.v[p] >> (4 * nibble)) & 15u) - 8;
  return to_float(words);
}
#endif
INLINE F int8_values(const int8_t *line, int byte) {
  I words = load((const int32_t *)line);
  EACH_PART words.v[p] = (words.v[p] << (24 - 8 * byte)) >> 24;
  return to_float(words);
}

// How a weight matrix is stored: bytes of a group of 64 outputs, what is added to its codes, and the products of one group
// of N blocks of sixteen outputs with M rows: exact integers, or float32 in the order of k.
//
// ANY_SCALES: their dtype is known at run time only; otherwise they are bfloat16. ZEROS: a group of an output may have a
// zero point, which lies `shifts` above the usual one; the float32 products subtract it from the weights, exactly. What
// qpack quantizes itself has neither, and pays for neither.
constexpr int AHEAD = 2048;  // bytes; what is read next, beyond what the processor fetches by itself

template <bool IMPORTED>
struct Int4 {
  static constexpr bool ANY_SCALES = IMPORTED, ZEROS = IMPORTED;
  static constexpr int BYTES = INT4_GROUP, OFFSET = 8;
  template <int M, int N>
  static INLINE void multiply(const uint8_t *codes, const int8_t *const (&x)[M], I (&sums)[N][M]) {
    for (int line = 0; line < GROUP / 8; line++, codes += LINE)
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) {
        __builtin_prefetch(codes + n * 64 + AHEAD);
        const Line low = low_codes(codes + n * 64), high = high_codes(codes + n * 64);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
          multiply_add<true>(sums[n][m], low, x[m] + 8 * line);
          multiply_add<true>(sums[n][m], high, x[m] + 8 * line + 4);
        }
      }
  }
  template <int M, int N>
  static INLINE void multiply(const uint8_t *codes, const float *const (&x)[M], const F (&shifts)[N], F (&sums)[N][M]) {
    for (int line = 0; line < GROUP / 8; line++, codes += LINE) {
      for (int n = 0; n < N; n++) __builtin_prefetch(codes + n * 64 + AHEAD);
#pragma GCC unroll 8
      for (int k = 0; k < 8; k++) {
        const int nibble = k < 4 ? 2 * k : 2 * (k - 4) + 1;  // byte j holds k = j low and k = 4 + j high
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
          F w = int4_values(codes + n * 64, nibble);
          if constexpr (ZEROS) w = w - shifts[n];
#pragma GCC unroll 16
          for (int m = 0; m < M; m++) sums[n][m] = fma(w, x[m][8 * line + k], sums[n][m]);
        }
      }
    }
  }
};

template <bool IMPORTED>
struct Int8 {
  static constexpr bool ANY_SCALES = IMPORTED, ZEROS = false;
  static constexpr int BYTES = INT8_GROUP, OFFSET = INT8_OFFSET;
  template <int M, int N>
  static INLINE void multiply(const uint8_t *codes, const int8_t *const (&x)[M], I (&sums)[N][M]) {
    for (int line = 0; line < GROUP / 4; line++, codes += LINE)
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) {
        __builtin_prefetch(codes + n * 64 + AHEAD);
        const Line four = int8_codes((const int8_t *)codes + n * 64);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) multiply_add<false>(sums[n][m], four, x[m] + 4 * line);
      }
  }
  template <int M, int N>
  static INLINE void multiply(const uint8_t *codes, const float *const (&x)[M], const F (&)[N], F (&sums)[N][M]) {
    for (int line = 0; line < GROUP / 4; line++, codes += LINE) {
      for (int n = 0; n < N; n++) __builtin_prefetch(codes + n * 64 + AHEAD);
#pragma GCC unroll 4
      for (int k = 0; k < 4; k++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
          const F w = int8_values((const int8_t *)codes + n * 64, k);
#pragma GCC unroll 16
          for (int m = 0; m < M; m++) sums[n][m] = fma(w, x[m][4 * line + k], sums[n][m]);
        }
    }
  }
};
