// The rows of x as a product reads them: int8 with a scale per group (fast), or float32 (exact); padded with zeros to
// whole groups.
struct Activations {
  int64_t groups;
  int8_t *codes;   // [rows, groups, 128], fast
  float *scales;   // [rows, groups]: x is about code * scale, |code| <= 127
  int32_t *sums;   // [rows, groups]: of the codes, for weights stored with an offset
  float *values;   // [rows, groups, 128], exact

  Activations(Scratch &scratch, int64_t rows, int64_t k, bool fast) : groups((k + GROUP - 1) / GROUP) {
    codes = scratch.take<int8_t>(fast ? rows * groups * GROUP : 0);
    scales = scratch.take<float>(fast ? rows * groups : 0);
    sums = scratch.take<int32_t>(fast ? rows * groups : 0);
    values = scratch.take<float>(fast ? 0 : rows * groups * GROUP);
  }
};

// One group of 128: code = round(x * 127 / max|x|), to the nearest, ties to even. A group that holds inf or NaN gets the
// scale NaN, so that the product is NaN and not a number that looks right.
INLINE void quantize_group(const float *x, int8_t *codes, float *scale, int32_t *sum_of_codes) {
  F most = zero(), bad = zero();
  for (int i = 0; i < GROUP; i += LANES) {
    const F v = load(x + i);
    most = max(abs(v), most);
    bad = bad + v * 0.0f;
  }
  const float top = largest(most);
  *scale = top * (1.0f / 127.0f) + sum(bad);
  *sum_of_codes = 0;
  if (*scale != *scale) return (void)__builtin_memset(codes, 0, GROUP);
  const float inverse = top > 1e-30f ? 127.0f / top : 0.0f;  // below, 127 / top may overflow, and the group counts as zeros
  I total = {};
  for (int i = 0; i < GROUP; i += LANES) {
    F v = load(x + i) * inverse;
    EACH_PART {
      // 1.5 * 2^23: adding it rounds to an integer, which stands in the low bits
      Vi code = bits_of<Vi>(v.v[p] + 12582912.0f) - bits_of<Vi>(splat(12582912.0f));
      total.v[p] += code;
      typedef int8_t Vb __attribute__((vector_size(WIDTH)));
      Vb bytes = __builtin_convertvector(code, Vb);
      __builtin_memcpy(codes + i + p * WIDTH, &bytes, sizeof bytes);
    }
  }
  int32_t lanes[LANES];
  store(lanes, total);
  for (int32_t lane : lanes) *sum_of_codes += lane;
}

INLINE void read_group(const Tensor &x, bool fast, int64_t item, const Activations &to) {
  const int64_t k = x.dims[1], row = item / to.groups, begin = item % to.groups * GROUP;
  const int64_t count = k - begin < GROUP ? k - begin : GROUP;
  float wide[GROUP];
  float *values = fast ? wide : to.values + item * GROUP;
  by_dtype(x.dtype, [&](auto *like) {
    auto *in = (decltype(like))x.data + row * k + begin;
    for (int64_t i = 0; i < GROUP; i += LANES)
      store(values + i, i < count ? load_some(in + i, (int)(count - i)) : zero());
  });
  if (fast) quantize_group(values, to.codes + item * GROUP, to.scales + item, to.sums + item);
}

// Up to so many rows every thread reads by itself, into scratch of its own: that takes less time than to wait for the
// others and to fetch from their caches what they made.
constexpr int64_t ALONE_ROWS = 2;

// x [rows, k] of any float dtype, in at most one phase.
INLINE Activations read_activations(const Call &call, const Tensor &x, int64_t rows) {
  const bool fast = call.program.fast, alone = rows <= ALONE_ROWS;
  Scratch scratch{call.scratch()};
  Activations to(scratch, rows, x.dims[1], fast);
  const int64_t items = rows * to.groups;
  if (alone) {
    scratch.base += call.worker.index * scratch.used, scratch.used = 0;
    to = Activations(scratch, rows, x.dims[1], fast);
    for (int64_t item = 0; item < items; item++) read_group(x, fast, item, to);
  } else {
    call.worker.parallel(items, (to.groups + 7) / 8, [&](int64_t item) { read_group(x, fast, item, to); });
  }
  return to;
}

INLINE int64_t activations_scratch(const Tensor &x, int threads, bool fast) {
  Scratch all{nullptr}, own{nullptr};
  Activations(all, x.dims[0], x.dims[1], fast);
  Activations(own, x.dims[0] < ALONE_ROWS ? x.dims[0] : ALONE_ROWS, x.dims[1], fast);
  return all.used > threads * own.used ? all.used : threads * own.used;
}
