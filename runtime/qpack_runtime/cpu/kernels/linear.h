// y = x @ weight^T (+ bias) with a weight that stays dense [N, K]: the lanes run along K, four outputs at a time.
constexpr int DENSE_OUTPUTS = 4, DENSE_ROWS = 4;

INLINE int64_t padded_width(const Tensor &x) { return round_up(x.dims[1], LANES); }

template <int M, class Weight>
INLINE void multiply_dense(const float *x, int64_t stride, const Weight *weight, int64_t k, int outputs, float *out) {
  F sums[DENSE_OUTPUTS][M] = {};
  for (int64_t i = 0; i < k; i += LANES) {
    F values[M];
    for (int m = 0; m < M; m++) values[m] = load(x + m * stride + i);
#pragma GCC unroll 4
    for (int n = 0; n < DENSE_OUTPUTS; n++) {
      const F w = load_some(weight + (n < outputs ? n : 0) * k + i, (int)(k - i));
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) sums[n][m] = fma(values[m], w, sums[n][m]);
    }
  }
  for (int m = 0; m < M; m++)
    for (int n = 0; n < DENSE_OUTPUTS; n++) out[m * DENSE_OUTPUTS + n] = sum(sums[n][m]);
}

INLINE void linear(const Call &call) {
  enum { X, WEIGHT, BIAS, Y };
  const Tensor &x = call.operand(X), &weight = call.operand(WEIGHT), &bias = call.operand(BIAS), &y = call.operand(Y);
  const int64_t rows = call.rows(x), k = x.dims[1], outputs = y.dims[1], stride = padded_width(x);
  float *values = (float *)call.scratch();
  call.worker.parallel(rows, 1, [&](int64_t row) {
    for (int64_t i = k; i < stride; i++) values[row * stride + i] = 0;
    widen(x, row, k, values + row * stride);
  });
  const int64_t blocks = (outputs + DENSE_OUTPUTS - 1) / DENSE_OUTPUTS;
  call.worker.parallel(blocks, call.worker.grain(blocks), [&](int64_t block) {
    const int64_t column = block * DENSE_OUTPUTS;
    const int count = outputs - column < DENSE_OUTPUTS ? (int)(outputs - column) : DENSE_OUTPUTS;
    float add[DENSE_OUTPUTS] = {};
    if (bias.data) by_dtype(bias.dtype, [&](auto *like) {
      float wide[LANES];
      store(wide, load_some((decltype(like))bias.data + column, count));
      for (int n = 0; n < count; n++) add[n] = wide[n];
    });
    by_dtype(weight.dtype, [&](auto *like) {
      auto *lines = (decltype(like))weight.data + column * k;
      by_dtype(y.dtype, [&](auto *to) {
        auto *out = (decltype(to))y.data + column;
        float products[DENSE_ROWS * DENSE_OUTPUTS];
        for (int64_t row = 0; row < rows;) {
          const int m = rows - row >= DENSE_ROWS ? DENSE_ROWS : 1;
          if (m == 1) multiply_dense<1>(values + row * stride, stride, lines, k, count, products);
          else multiply_dense<DENSE_ROWS>(values + row * stride, stride, lines, k, count, products);
          for (int i = 0; i < m; i++, row++) {
            float wide[LANES] = {};
            for (int n = 0; n < count; n++) wide[n] = products[i * DENSE_OUTPUTS + n] + add[n];
            store_some(out + row * outputs, load(wide), count);
          }
        }
      });
    });
  });
}

int64_t linear_scratch(const Instruction &instruction) {
  const Tensor &x = instruction.operands[0];
  return x.dims[0] * padded_width(x) * (int64_t)sizeof(float);
}
