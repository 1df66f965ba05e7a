// Sixteen float32 lanes, F, and sixteen int32 lanes, I, however wide the registers of this code path are. Every path
// works in the same lanes and adds them up in the same tree.
//
// Included by path.cpp only, inside its unnamed namespace: each code path has its own copy, so nothing here may be a
// function that the linker could share between paths (no standard library).
#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX2__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif
constexpr int LANES = 16, PARTS = LANES / WIDTH;
#define INLINE inline __attribute__((always_inline))

typedef float Vf __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Vi __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Vu __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t Vh __attribute__((vector_size(2 * WIDTH)));

// PARTS registers; #pragma GCC unroll makes the loops over them vanish.
struct F { Vf v[PARTS]; };
struct I { Vi v[PARTS]; };
#define EACH_PART _Pragma("GCC unroll 4") for (int p = 0; p < PARTS; p++)

template <class To, class From>
INLINE To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

INLINE Vf splat(float x) { return x - Vf{}; }  // not +: -0 + 0 is 0

// a * b + c with one rounding where the path has an instruction for it, with two where not. Nothing else is ever
// contracted (-ffp-contract=off), so a row's bits do not depend on how a loop was compiled.
INLINE Vf fma(Vf a, Vf b, Vf c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

INLINE F operator+(F a, F b) { EACH_PART a.v[p] += b.v[p]; return a; }
INLINE F operator-(F a, F b) { EACH_PART a.v[p] -= b.v[p]; return a; }
INLINE F operator*(F a, F b) { EACH_PART a.v[p] *= b.v[p]; return a; }
INLINE F operator/(F a, F b) { EACH_PART a.v[p] /= b.v[p]; return a; }
INLINE F operator*(F a, float b) { EACH_PART a.v[p] *= b; return a; }
INLINE F fma(F a, F b, F c) { EACH_PART c.v[p] = fma(a.v[p], b.v[p], c.v[p]); return c; }
INLINE F fma(F a, float b, F c) { EACH_PART c.v[p] = fma(a.v[p], splat(b), c.v[p]); return c; }
INLINE F zero() { return F{}; }
INLINE F all(float x) { F f; EACH_PART f.v[p] = splat(x); return f; }
INLINE I operator+(I a, I b) { EACH_PART a.v[p] += b.v[p]; return a; }
INLINE I operator-(I a, I b) { EACH_PART a.v[p] -= b.v[p]; return a; }
INLINE I operator*(I a, int32_t b) { EACH_PART a.v[p] *= b; return a; }
INLINE I all(int32_t x) { I i; EACH_PART i.v[p] = Vi{} + x; return i; }
INLINE F to_float(I i) { F f; EACH_PART f.v[p] = __builtin_convertvector(i.v[p], Vf); return f; }
// b where a is NaN, as x86's max has it on every path.
INLINE F max(F a, F b) { EACH_PART a.v[p] = a.v[p] > b.v[p] ? a.v[p] : b.v[p]; return a; }
INLINE F min(F a, F b) { EACH_PART a.v[p] = a.v[p] < b.v[p] ? a.v[p] : b.v[p]; return a; }
INLINE F abs(F a) { EACH_PART a.v[p] = bits_of<Vf>(bits_of<Vu>(a.v[p]) & 0x7fffffffu); return a; }

// Lanes 0 .. count-1 of a, the others `rest`.
INLINE F keep(F a, int count, float rest) {
  static const int32_t lane[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  EACH_PART {
    Vi index;
    __builtin_memcpy(&index, lane + p * WIDTH, sizeof index);
    a.v[p] = index < count ? a.v[p] : splat(rest);
  }
  return a;
}

// Folded in halves: lane i with i + 8, then + 4, + 2, + 1, the same on every path.
template <class Fold>
INLINE float fold(F a, Fold with) {
  float x[LANES];
  __builtin_memcpy(x, &a, sizeof x);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] = with(x[i], x[i + half]);
  return x[0];
}
INLINE float largest(F a) { return fold(a, [](float x, float y) { return x > y ? x : y; }); }
INLINE float sum(F a) {
#if defined(__AVX512F__)
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v[0]), _mm512_extractf32x8_ps(a.v[0], 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
#else
  return fold(a, [](float x, float y) { return x + y; });
#endif
}

// Register by register: a copy of all 64 bytes goes through the stack in smaller pieces and waits for them.
INLINE F load(const float *x) { F f; EACH_PART __builtin_memcpy(&f.v[p], x + p * WIDTH, sizeof(Vf)); return f; }
INLINE void store(float *x, F f) { EACH_PART __builtin_memcpy(x + p * WIDTH, &f.v[p], sizeof(Vf)); }
INLINE I load(const int32_t *x) { I i; EACH_PART __builtin_memcpy(&i.v[p], x + p * WIDTH, sizeof(Vi)); return i; }
INLINE void store(int32_t *x, I i) { EACH_PART __builtin_memcpy(x + p * WIDTH, &i.v[p], sizeof(Vi)); }

// Memory of the three dtypes; float16 is IEEE's. Rounding is to the nearest, ties to even, NaN stays NaN.
struct bf16 { uint16_t bits; };
typedef _Float16 f16;

INLINE F load(const bf16 *x) {
  F f;
  EACH_PART {
#if defined(__AVX512F__)
    f.v[p] = bits_of<Vf>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)), 16));
#elif defined(__AVX2__)
    f.v[p] = bits_of<Vf>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(x + p * WIDTH))), 16));
#else
    Vh half;
    __builtin_memcpy(&half, x + p * WIDTH, sizeof half);
    f.v[p] = bits_of<Vf>(__builtin_convertvector(half, Vu) << 16);
#endif
  }
  return f;
}
INLINE void store(bf16 *x, F f) {
  EACH_PART {
    Vu bits = bits_of<Vu>(f.v[p]);
    Vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    Vu chosen = (bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded;
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)x, _mm512_cvtepi32_epi16((__m512i)chosen));
#else
    Vh half = __builtin_convertvector(chosen, Vh);
    __builtin_memcpy(x + p * WIDTH, &half, sizeof half);
#endif
  }
}
INLINE F load(const f16 *x) {
  F f;
#if defined(__AVX512F__)
  f.v[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x));
#elif defined(__F16C__)
  EACH_PART f.v[p] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + p * WIDTH)));
#else
  EACH_PART for (int i = 0; i < WIDTH; i++) f.v[p][i] = (float)x[p * WIDTH + i];
#endif
  return f;
}
INLINE void store(f16 *x, F f) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i *)x, _mm512_cvtps_ph(f.v[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  EACH_PART _mm_storeu_si128((__m128i *)(x + p * WIDTH), _mm256_cvtps_ph(f.v[p], _MM_FROUND_TO_NEAREST_INT));
#else
  EACH_PART for (int i = 0; i < WIDTH; i++) x[p * WIDTH + i] = (f16)f.v[p][i];
#endif
}

// The first `count` lanes of memory; the others read as zero and are not written.
template <class T>
INLINE F load_some(const T *x, int count) {
  if (count >= LANES) return load(x);
  T buffer[LANES] = {};
  __builtin_memcpy(buffer, x, count * sizeof(T));
  return load(buffer);
}
template <class T>
INLINE void store_some(T *x, F f, int count) {
  if (count >= LANES) return store(x, f);
  T buffer[LANES];
  store(buffer, f);
  __builtin_memcpy(x, buffer, count * sizeof(T));
}

// Calls body with a null pointer of the memory type of a float dtype: by_dtype(t.dtype, [&](auto *like) { ... }).
template <class Body>
INLINE void by_dtype(int32_t dtype, Body body) {
  if (dtype == BF16) body((bf16 *)nullptr);
  else if (dtype == F16) body((f16 *)nullptr);
  else body((float *)nullptr);
}

INLINE F load(const void *x, int32_t dtype, int64_t at) {
  F f;
  by_dtype(dtype, [&](auto *like) { f = load((decltype(like))x + at); });
  return f;
}
INLINE float load_one(const void *x, int32_t dtype, int64_t at) {
  if (dtype == BF16) return bits_of<float>((uint32_t)((const bf16 *)x)[at].bits << 16);
  return dtype == F16 ? (float)((const f16 *)x)[at] : ((const float *)x)[at];
}
INLINE I load(const int8_t *x) {
  typedef int8_t Vb __attribute__((vector_size(WIDTH)));
  I i;
  EACH_PART {
    Vb bytes;
    __builtin_memcpy(&bytes, x + p * WIDTH, sizeof bytes);
    i.v[p] = __builtin_convertvector(bytes, Vi);
  }
  return i;
}

// e^x within 2 ulp, 0 below -87.3: e^x = 2^n 2^f with |f| <= 1/2, a degree-6 polynomial for 2^f (its Taylor series in
// f ln 2, error 1.6e-7 relative). NaN and +inf stay.
INLINE F exp(F x) {
  EACH_PART {
    Vf in = x.v[p];
    Vf low = in < splat(-87.3f) ? splat(-87.3f) : in;
    low = low > splat(88.7f) ? splat(88.7f) : low;
    Vf n = low * 1.44269504089f + 12582912.0f;  // 1.5 * 2^23 rounds to an integer, which stands in the low bits
    Vi whole = bits_of<Vi>(n) - bits_of<Vi>(splat(12582912.0f));
    n -= 12582912.0f;
    Vf r = fma(n, splat(-0.693145751953125f), low);  // x - n ln 2, ln 2 in two parts
    r = fma(n, splat(-1.428606765330187e-06f), r);
    Vf y = splat(1.0f / 720);
    y = fma(y, r, splat(1.0f / 120));
    y = fma(y, r, splat(1.0f / 24));
    y = fma(y, r, splat(1.0f / 6));
    y = fma(y, r, splat(0.5f));
    y = fma(y, r, splat(1.0f));
    y = fma(y, r, splat(1.0f));
    y *= bits_of<Vf>((whole + 127) << 23);
    y = in < splat(-87.3f) ? splat(0.0f) : y;
    y = in > splat(88.7f) ? splat(__builtin_inff()) : y;
    x.v[p] = in != in ? in : y;
  }
  return x;
}
INLINE F sigmoid(F x) { return all(1.0f) / (all(1.0f) + exp(zero() - x)); }

INLINE int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

template <class T> struct Pointed;
template <class T> struct Pointed<T *> { using type = T; };
