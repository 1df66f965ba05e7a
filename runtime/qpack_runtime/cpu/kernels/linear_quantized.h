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

// N blocks of sixteen outputs for M rows from `row` on. A sum waits for itself, so that only many sums at once fill the
// pipelines.
template <class Weights, int M, int N>
INLINE void multiply_blocks(const Activations &x, bool fast, int64_t row, const uint8_t *codes, const bf16 *scales, F (&totals)[N][M]) {
  for (auto &block : totals)
    for (F &total : block) total = zero();
  for (int64_t group = 0; group < x.groups; group++, codes += Weights::BYTES, scales += BLOCKS * LANES) {
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
        for (int n = 0; n < N; n++) sums[n][m] = all(-Weights::OFFSET * x.sums[at]);
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
      Weights::multiply(codes, rows, products);
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
      const F scale = load(scales + n * LANES);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) totals[n][m] = fma(products[n][m], scale * factors[m], totals[n][m]);
    }
  }
}

// All rows for a tile, M at a time: its weights come from memory once and then stay in a cache.
template <class Weights, int M, class Sink>
INLINE void multiply_rows(const Activations &x, bool fast, int64_t row, int64_t rows, const uint8_t *codes, const bf16 *scales, const Sink &sink) {
  constexpr int N = M == 1 ? BLOCKS : MOST_BLOCKS;
  F totals[N][M];
  for (; row + M <= rows; row += M)
    for (int block = 0; block < BLOCKS; block += N) {
      multiply_blocks<Weights, M, N>(x, fast, row, codes + block * 64, scales + block * LANES, totals);
      for (int n = 0; n < N; n++)
        for (int m = 0; m < M; m++) sink(block + n, row + m, totals[n][m]);
    }
  if constexpr (M > 1)
    if (row < rows) multiply_rows<Weights, M == 6 ? 4 : M / 2>(x, fast, row, rows, codes, scales, sink);
}

template <class Weights>
INLINE void linear_quantized(const Call &call, const Tensor &x, const Tensor &q, int64_t columns, const Tensor &scale, const Tensor *bias, const Tensor &y) {
  const int64_t rows = call.rows(x), outputs = y.dims[1];
  const bool fast = call.program.fast;
  const Activations in = read_activations(call, x, rows);
  const int64_t tiles = (columns + BLOCKS * LANES - 1) / (BLOCKS * LANES);
  call.worker.parallel(tiles, call.worker.grain(tiles), [&](int64_t tile) {
    const uint8_t *codes = (const uint8_t *)q.data + tile * in.groups * Weights::BYTES;
    const bf16 *scales = (const bf16 *)scale.data + tile * in.groups * BLOCKS * LANES;
    multiply_rows<Weights, MOST_ROWS>(in, fast, 0, rows, codes, scales, [&](int block, int64_t row, F total) {
      const int64_t column = (tile * BLOCKS + block) * LANES;
      const int count = (int)(outputs - column);
      if (count <= 0) return;  // padding of the weight
      if (bias && bias->data)
        by_dtype(bias->dtype, [&](auto *like) { total = total + load_some((decltype(like))bias->data + column, count); });
      by_dtype(y.dtype, [&](auto *like) { store_some((decltype(like))y.data + row * outputs + column, total, count); });
    });
  });
}

INLINE void linear_int4(const Call &call) {
  enum { X, Q, SCALE, BIAS, Y };
  const Tensor &scale = call.operand(SCALE);
  linear_quantized<Int4>(call, call.operand(X), call.operand(Q), scale.dims[1], scale, &call.operand(BIAS), call.operand(Y));
}

INLINE void linear_int8(const Call &call) {
  enum { X, Q, SCALE, Y };
  const Tensor &q = call.operand(Q);
  linear_quantized<Int8>(call, call.operand(X), q, q.dims[0], call.operand(SCALE), nullptr, call.operand(Y));
}
