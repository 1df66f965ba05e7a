// float32 rows in scratch or registers, and the norms over them.

// A row of any float dtype as float32.
INLINE void widen(const Tensor &tensor, int64_t row, int64_t width, float *out) {
  by_dtype(tensor.dtype, [&](auto *like) {
    auto *x = (decltype(like))tensor.data + row * width;
    for (int64_t i = 0; i < width; i += LANES) store_some(out + i, load_some(x + i, (int)(width - i)), (int)(width - i));
  });
}

// 1 / rms(x): Zhang & Sennrich, "Root Mean Square Layer Normalization". The square root and the division are exact.
template <class T>
INLINE float inverse_rms(const T *x, int64_t width, float eps) {
  F squares = zero();
  for (int64_t i = 0; i < width; i += LANES) {
    const F v = load_some(x + i, (int)(width - i));
    squares = fma(v, v, squares);
  }
  return 1.0f / __builtin_sqrtf(sum(squares) / (float)width + eps);
}

// out = x / rms(x) * weight, or * (1 + weight).
template <class T, class Weight>
INLINE void normalize(const T *x, const Weight *weight, int64_t width, float eps, bool unit_offset, T *out) {
  const float inverse = inverse_rms(x, width, eps);
  const F offset = all(unit_offset ? 1.0f : 0.0f);
  for (int64_t i = 0; i < width; i += LANES) {
    const int count = (int)(width - i);
    store_some(out + i, load_some(x + i, count) * inverse * (load_some(weight + i, count) + offset), count);
  }
}

// y = norm(x), or with `delta`: sum = x + delta, rounded to the buffer's dtype, and y = norm(sum).
INLINE void rms_norm(const Call &call) {
  enum { X, DELTA, WEIGHT, Y, SUM };
  enum { EPS, UNIT_OFFSET };
  const Tensor &x = call.operand(X), &weight = call.operand(WEIGHT);
  const int64_t width = x.dims[1];
  const float eps = (float)call.attribute(EPS);
  const bool unit_offset = call.attribute(UNIT_OFFSET) != 0;
  call.worker.parallel(call.rows(x), 1, [&](int64_t row) {
    by_dtype(x.dtype, [&](auto *like) {
      using T = typename Pointed<decltype(like)>::type;
      const T *in = call.data<T>(X) + row * width;
      if (call.data<T>(DELTA)) {
        const T *more = call.data<T>(DELTA) + row * width;
        T *total = call.data<T>(SUM) + row * width;
        for (int64_t i = 0; i < width; i += LANES) {
          const int count = (int)(width - i);
          store_some(total + i, load_some(in + i, count) + load_some(more + i, count), count);
        }
        in = total;
      }
      by_dtype(weight.dtype, [&](auto *weights) {
        normalize(in, (decltype(weights))weight.data, width, eps, unit_offset, call.data<T>(Y) + row * width);
      });
    });
  });
}

// y = silu(gate) * up; columns gate | up. Shazeer, "GLU Variants Improve Transformer".
INLINE void silu_mul(const Call &call) {
  enum { X, Y };
  const Tensor &x = call.operand(X), &y = call.operand(Y);
  const int64_t width = y.dims[1], piece = 512, pieces = (width + piece - 1) / piece;
  call.worker.parallel(call.rows(y) * pieces, 1, [&](int64_t item) {
    by_dtype(x.dtype, [&](auto *like) {
      using T = typename Pointed<decltype(like)>::type;
      const int64_t row = item / pieces, begin = item % pieces * piece;
      const int64_t end = begin + piece < width ? begin + piece : width;
      const T *gate = (const T *)x.data + row * 2 * width, *up = gate + width;
      T *out = (T *)y.data + row * width;
      for (int64_t i = begin; i < end; i += LANES) {
        const int count = (int)(end - i);
        const F g = load_some(gate + i, count);
        store_some(out + i, g * sigmoid(g) * load_some(up + i, count), count);
      }
    });
  });
}
