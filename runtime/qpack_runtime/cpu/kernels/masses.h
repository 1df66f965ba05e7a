// Probability masses of scores, in integers: no order of addition shows in their sums. e^y = mantissa * 2^exponent, the
// mantissa from 2^29 (stands for 1) to 2^30; a mass is in units of 2^(top - 37), `top` being the largest exponent of
// those it is added to. See reference/sampling.py.
constexpr int64_t CHUNK_IDS = 4096, LINE_IDS = 32;  // line i of a row belongs to chunk i % ceil(width / CHUNK_IDS)
constexpr int32_t TOP_P_ONE = 1 << 24;

// 2^r on [0, 1]: minimax polynomial, constant term first.
constexpr float EXP2[] = {
  1.0f, 0.6931469440460205f, 0.2402305006980896f, 0.05548042804002762f, 0.009684580378234386f, 0.0012387821916490793f,
  0.00021877505059819669f,
};

struct Power {
  Vu mantissa;  // 0 for NaN, which stands for an id that may not be chosen
  Vi exponent;
};

INLINE Power exponential(Vf y) {
  Vf power = y * 1.4426950408889634f;  // log2(e)
  power = power > -0x1p30f ? power : splat(-0x1p30f);
  power = power < 0x1p30f ? power : splat(0x1p30f);
  Vi exponent = __builtin_convertvector(power, Vi);
  exponent += __builtin_convertvector(exponent, Vf) > power;  // rounded down
  const Vf fraction = power - __builtin_convertvector(exponent, Vf);
  const Vi mantissa = __builtin_convertvector(horner(fraction, EXP2) * 0x1p29f, Vi);
  return {bits_of<Vu>(mantissa & (y == y)), exponent};
}
INLINE int32_t exponent_of(float y) { return exponential(splat(y)).exponent[0]; }

// Masses of the even and of the odd lanes. Exponents may lie 2^31 apart.
INLINE void masses(Power power, int32_t top, Vq &even, Vq &odd) {
  Vu away = (uint32_t)top - bits_of<Vu>(power.exponent);
  away = away < 63 ? away : Vu{} + 63;
  const Vq mantissa = bits_of<Vq>(power.mantissa), by = bits_of<Vq>(away);
  even = (mantissa & LOW_HALF) << 8 >> (by & LOW_HALF), odd = mantissa >> 32 << 8 >> (by >> 32);
}
INLINE uint64_t mass_of(float y, int32_t top) {
  Vq even, odd;
  masses(exponential(splat(y)), top, even, odd);
  return even[0];
}

// An id is kept if the mass before it is below this; at least the first is.
INLINE uint64_t mass_kept(uint64_t whole, int32_t top_p24) {
  const uint64_t mass = (uint64_t)((unsigned __int128)whole * (uint32_t)top_p24 / TOP_P_ONE);
  return mass > 0 ? mass : 1;
}

// Bins of a histogram: bin b holds the scores b / 32 to (b + 1) / 32 below the best, the last one all lower ones, and
// all there are if the best is infinite. It only matters that bins ascend as scores descend, which they do however the
// subtraction and the product are rounded.
constexpr int BINS = 1024;
INLINE Vi bin_of(Vf y, float best) {
  const Vf away = (best - y) * 32.0f;
  return __builtin_convertvector(away < (float)(BINS - 1) ? away : splat(BINS - 1), Vi);
}
