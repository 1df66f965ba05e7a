// y = x @ W (+ bias) with int4 or int8 weights: tiles of sixty-four outputs for a few rows at a time, group by group.
//
// Per row and group the product is an exact integer (fast) or a float32 sum in the order of k (exact); it is scaled and
// added to the row's total with one fused step, groups ascending. So a row's bits depend on neither the rows beside it
// nor on which thread has it, in decode and prefill alike.
#if defined(__AVX512F__)
constexpr int MOST_ROWS = 6, MOST_BLOCKS = 4;  // twenty-four sums: three quarters of the registers
#else
constexpr int MOST_ROWS = 2, MOST_BLOCKS = 2;
#endif

// Scales and zero points of a tile's outputs, from some group and block on. `zeros` is null where all are 8.
template <class Weights>
struct GroupValues {
  const uint8_t *scales;
  int32_t dtype;
  const int8_t *zeros;

  GroupValues from(int64_t at) const {
    const int bytes = Weights::ANY_SCALES && dtype == F32 ? 4 : 2;
    return {scales + at * bytes, dtype, Weights::ZEROS && zeros ? zeros + at : nullptr};
  }
  INLINE F scale(int block) const {
    if constexpr (Weights::ANY_SCALES) return load(scales, dtype, block * LANES);
    else return load((const bf16 *)scales + block * LANES);
  }
  INLINE I shift(int block) const { return zeros ? load(zeros + block * LANES) - all(8) : I{}; }
};

// N blocks of sixteen outputs for M rows from `row` on. A sum waits for itself, so that only many sums at once fill the
// pipelines.
template <class Weights, int M, int N>
INLINE void multiply_blocks(const Activations &x, bool fast, int64_t row, const uint8_t *codes, GroupValues<Weights> values, F (&totals)[N][M]) {
  for (auto &block : totals)
    for (F &total : block) total = zero();
  for (int64_t group = 0; group < x.groups; group++, codes += Weights::BYTES, values = values.from(BLOCKS * LANES)) {
    F products[N][M], factors[M];
    const int64_t first = row * x.groups + group;
    if (fast) {
      const int8_t *rows[M];
      I sums[N][M];
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        const int64_t at = first + m * x.groups;
        rows[m] = x.codes + at * GROUP;
        factors[m] = all(x.scales[at]);
        for (int n = 0; n < N; n++) {
          sums[n][m] = all(-Weights::OFFSET * x.sums[at]);
          if constexpr (Weights::ZEROS) sums[n][m] = sums[n][m] - values.shift(n) * x.sums[at];
        }
      }
      Weights::multiply(codes, rows, sums);
      for (int n = 0; n < N; n++)
        for (int m = 0; m < M; m++) products[n][m] = to_float(sums[n][m]);
    } else {
      const float *rows[M];
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        rows[m] = x.values + (first + m * x.groups) * GROUP;
        factors[m] = all(1.0f);
        for (int n = 0; n < N; n++) products[n][m] = zero();
      }
      F shifts[N];
      if constexpr (Weights::ZEROS)
        for (int n = 0; n < N; n++) shifts[n] = to_float(values.shift(n));
      Weights::multiply(codes, rows, shifts, products);
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
      const F scale = values.scale(n);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) totals[n][m] = fma(products[n][m], scale * factors[m], totals[n][m]);
    }
  }
}

// All rows for a tile, M at a time: its weights come from memory once and then stay in a cache.
template <class Weights, int M, class Sink>
INLINE void multiply_rows(const Activations &x, bool fast, int64_t row, int64_t rows, const uint8_t *codes, const GroupValues<Weights> &values, const Sink &sink) {
  constexpr int N = M == 1 ? BLOCKS : MOST_BLOCKS;
  F totals[N][M];
  for (; row + M <= rows; row += M)
    for (int block = 0; block < BLOCKS; block += N) {
      multiply_blocks<Weights, M, N>(x, fast, row, codes + block * 64, values.from(block * LANES), totals);
      for (int n = 0; n < N; n++)
        for (int m = 0; m < M; m++) sink(block + n, row + m, totals[n][m]);
    }
  if constexpr (M > 1)
    if (row < rows) multiply_rows<Weights, M == 6 ? 4 : M / 2>(x, fast, row, rows, codes, values, sink);
}

struct Quantized {
  const Tensor &x, &q;
  int64_t columns;  // of the stored weight, before they are rounded up to whole tiles
  const Tensor &scale;
  const int8_t *zeros;
  const Tensor &bias, &y;
};

template <class Weights>
__attribute__((noinline)) void linear_quantized(const Call &call, const Quantized &o) {
  const int64_t rows = call.rows(o.x), outputs = o.y.dims[1];
  const bool fast = call.program.fast;
  const Activations in = read_activations(call, o.x, rows);
  const int64_t tiles = (o.columns + BLOCKS * LANES - 1) / (BLOCKS * LANES);
  const GroupValues<Weights> of_groups{(const uint8_t *)o.scale.data, o.scale.dtype, o.zeros};
  call.worker.parallel(tiles, call.worker.grain(tiles), [&](int64_t tile) {
    const uint8_t *codes = (const uint8_t *)o.q.data + tile * in.groups * Weights::BYTES;
    const GroupValues<Weights> values = of_groups.from(tile * in.groups * BLOCKS * LANES);
    multiply_rows<Weights, MOST_ROWS>(in, fast, 0, rows, codes, values, [&](int block, int64_t row, F total) {
      const int64_t column = (tile * BLOCKS + block) * LANES;
      const int count = (int)(outputs - column);
      if (count <= 0) return;  // padding of the weight
      if (o.bias.data)
        by_dtype(o.bias.dtype, [&](auto *like) { total = total + load_some((decltype(like))o.bias.data + column, count); });
      by_dtype(o.y.dtype, [&](auto *like) { store_some((decltype(like))o.y.data + row * outputs + column, total, count); });
    });
  });
}

INLINE void linear_int4(const Call &call) {
  enum { X, Q, SCALE, ZERO, BIAS, Y };
  const Tensor &scale = call.operand(SCALE);
  const Quantized o{call.operand(X), call.operand(Q), scale.dims[1], scale, call.data<int8_t>(ZERO), call.operand(BIAS), call.operand(Y)};
  if (o.zeros || scale.dtype != BF16) linear_quantized<Int4<true>>(call, o);
  else linear_quantized<Int4<false>>(call, o);
}

INLINE void linear_int8(const Call &call) {
  enum { X, Q, SCALE, BIAS, Y };
  const Tensor &q = call.operand(Q), &scale = call.operand(SCALE);
  const Quantized o{call.operand(X), q, q.dims[0], scale, nullptr, call.operand(BIAS), call.operand(Y)};
  if (scale.dtype != BF16) linear_quantized<Int8<true>>(call, o);
  else linear_quantized<Int8<false>>(call, o);
}
