// The sampler's noise, that of reference/philox.py to the bit: Philox4x32-10 (Salmon et al., "Parallel random numbers:
// as easy as 1, 2, 3", SC 2011) and float32 arithmetic, each product and each sum rounded on its own.
typedef uint64_t Vq __attribute__((vector_size(4 * WIDTH)));
constexpr uint64_t LOW_HALF = 0xffffffff;
constexpr int WORDS = 64;  // words_of() makes so many at once
constexpr float NOISE_LEAST = -3, NOISE_MOST = 23;  // it lies between -2.82 and 22.88

// Minimax polynomials, constant term first: log(1 + f) / f and -log(1 - u) / u.
constexpr float LOG1P[] = {
  1.0f, -0.49999988079071045f, 0.33333325386047363f, -0.25001585483551025f, 0.2000207155942917f, -0.16609126329421997f,
  0.14180079102516174f, -0.13240842521190643f, 0.129141703248024f, -0.07638592272996902f,
};
constexpr float MINUS_LOG1M[] = {
  1.0f, 0.5000000596046448f, 0.33332714438438416f, 0.2501929700374603f, 0.1970776468515396f, 0.1902793049812317f,
  0.04079221934080124f, 0.3349906802177429f,
};

template <int TERMS>
INLINE Vf horner(Vf x, const float (&coefficients)[TERMS]) {
  Vf value = splat(coefficients[TERMS - 1]);
#pragma GCC unroll 16
  for (int i = TERMS - 2; i >= 0; i--) value = value * x + coefficients[i];
  return value;
}

// log of positive normal numbers: x = 2^e (1 + f), log x = e log 2 + log(1 + f).
INLINE Vf natural_log(Vf x) {
  const Vi bits = bits_of<Vi>(x), exponent = (bits - 0x3f3504f3) >> 23;  // sqrt(1/2), so that 1 + f lies around 1
  const Vf f = bits_of<Vf>(bits - (exponent << 23)) - 1.0f;
  return __builtin_convertvector(exponent, Vf) * 0.6931471805599453f + f * horner(f, LOG1P);
}

// u = (x + 1/2) 2^-32 is uniform, -log(1 - u) exponential, and -log of that Gumbel.
INLINE Vf gumbel_of_words(Vu x) {
  Vf u = (__builtin_convertvector(x, Vf) + 0.5f) * 0x1p-32f;
  u = u < 1 - 0x1p-24f ? u : splat(1 - 0x1p-24f);
  const Vi small = u < 0.25f;
  const Vf exponential = small ? u * horner(u, MINUS_LOG1M) : -natural_log(small ? splat(0.5f) : 1.0f - u);
  return -natural_log(exponential);
}

// At least the noise of the words, for a fraction of the work: -log(1 - u) >= u, and the bits of a float32 number, read
// as an integer, are at most 2^23 (127 + its log2). The 0.01 is more than either side's rounding.
INLINE Vf noise_at_most(Vu x) {
  const Vf log2 = __builtin_convertvector(bits_of<Vi>(__builtin_convertvector(x, Vf) + 0.5f), Vf) * 0x1p-23f;
  return (159 - log2) * 0.6931472f + 0.01f;
}

// 64-bit products of the low halves of 64-bit lanes.
INLINE Vq multiply_low(Vq a, Vq b) {
#if defined(__AVX512F__)
  return (Vq)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Vq)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Vq)_mm_mul_epu32((__m128i)a, (__m128i)b);
#elif defined(__ARM_NEON)
  return (Vq)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
#else
  return (a & LOW_HALF) * (b & LOW_HALF);
#endif
}

struct Key { uint32_t low, high; };

// Words 0 and 1, and 2 and 3, of the counters (c0, position, 0, 0). High halves of c0 are ignored.
INLINE void philox(Vq c0, int32_t position, Key key, Vq &first, Vq &second) {
  Vq c1 = Vq{} + (uint32_t)position, c2 = {}, c3 = {};
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++) {  // high halves fill with what nobody reads
    const Vq a = multiply_low(c0, Vq{} + 0xd2511f53u), b = multiply_low(c2, Vq{} + 0xcd9e8d57u);
    c0 = (b >> 32) ^ c1 ^ (uint64_t)key.low, c1 = b;
    c2 = (a >> 32) ^ c3 ^ (uint64_t)key.high, c3 = a;
    key.low += 0x9e3779b9u, key.high += 0xbb67ae85u;
  }
  first = (c0 & LOW_HALF) | (c1 << 32), second = (c2 & LOW_HALF) | (c3 << 32);
}

// The Philox words of the ids from `first`, a multiple of WORDS: id i takes word i % 4 of counter i / 4. Lane 4q + r of
// the counters holds number 4r + q, so that pairs of words need no more than a swap with their neighbours to stand in
// the order of the ids.
INLINE void words_of(int64_t first, int32_t position, Key key, Vu words[WORDS / LANES][PARTS]) {
  static const uint32_t number[LANES] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  EACH_PART {
    Vu counters;
    __builtin_memcpy(&counters, number + p * WIDTH, sizeof counters);
    counters += (uint32_t)first / 4;
    for (int odd = 0; odd < 2; odd++) {
      Vq a, b;
      philox(odd ? bits_of<Vq>(counters) >> 32 : bits_of<Vq>(counters), position, key, a, b);
#if defined(__AVX512F__)
      words[odd][p] = bits_of<Vu>(__builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14));
      words[odd + 2][p] = bits_of<Vu>(__builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15));
#elif defined(__AVX2__)
      words[odd][p] = bits_of<Vu>(__builtin_shufflevector(a, b, 0, 4, 2, 6));
      words[odd + 2][p] = bits_of<Vu>(__builtin_shufflevector(a, b, 1, 5, 3, 7));
#else
      words[odd][p] = bits_of<Vu>(__builtin_shufflevector(a, b, 0, 2));
      words[odd + 2][p] = bits_of<Vu>(__builtin_shufflevector(a, b, 1, 3));
#endif
    }
  }
}
