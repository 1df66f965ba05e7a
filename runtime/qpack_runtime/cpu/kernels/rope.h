// Norm and rotation of queries and keys, and the lines that a step adds to the cache.

// One head of `width` values, each as scaled(value, index of the first lane, lanes): its leading 2 * half values are
// rotated by cosines[half] and sines[half]. Su et al., "RoFormer", with the halves paired as in GPT-NeoX. Every product
// is rounded: without a norm the bits are the formula's.
template <class T, class Scaled>
INLINE void rotate(const T *x, int64_t width, int64_t half, const float *cosines, const float *sines, Scaled scaled,
                   T *out) {
  for (int64_t i = 0; i < half; i += LANES) {
    const int count = (int)(half - i);
    const F a = scaled(load_some(x + i, count), i, count), b = scaled(load_some(x + half + i, count), half + i, count);
    const F cosine = load_some(cosines + i, count), sine = load_some(sines + i, count);
    store_some(out + i, a * cosine - b * sine, count);
    store_some(out + half + i, b * cosine + a * sine, count);
  }
  for (int64_t i = 2 * half; i < width; i += LANES) {
    const int count = (int)(width - i);
    store_some(out + i, scaled(load_some(x + i, count), i, count), count);
  }
}

// Columns q | k | v of x: q and k normed per head (if the model does) and rotated; k and v written at line slot *
// context + position of the cache. A row of padding leaves the cache alone and gets a q of zeros.
INLINE void rope_kv_write(const Call &call) {
  enum { X, ROPE, Q_NORM, K_NORM, SLOTS, POSITIONS, K, V, Q };
  enum { CONTEXT, EPS, UNIT_OFFSET };
  const Tensor &x = call.operand(X), &rope = call.operand(ROPE), &q = call.operand(Q), &k = call.operand(K);
  const int64_t heads = q.dims[1], groups = k.dims[1], width = q.dims[2], half = rope.dims[2];
  const int64_t all_heads = heads + 2 * groups, items = call.rows(q) * all_heads;
  const float eps = (float)call.attribute(EPS);
  const F offset = all(call.attribute(UNIT_OFFSET) != 0 ? 1.0f : 0.0f);
  by_dtype(q.dtype, [&](auto *like) {
    using T = typename Pointed<decltype(like)>::type;
    call.worker.parallel(items, call.worker.grain(items), [&](int64_t item) {
      const int64_t row = item / all_heads, head = item % all_heads;
      const int64_t slot = call.data<int32_t>(SLOTS)[row], position = call.data<int32_t>(POSITIONS)[row];
      const bool live = slot != call.program.scratch_slot, is_query = head < heads;
      T *query = call.data<T>(Q) + (row * heads + head) * width;
      if (!live) {
        if (is_query) __builtin_memset(query, 0, width * sizeof(T));
        return;
      }
      const T *in = (const T *)x.data + row * x.dims[1] + head * width;
      const int64_t line = (slot * (int64_t)call.attribute(CONTEXT) + position) * groups;
      if (head >= heads + groups) {
        __builtin_memcpy(call.data<T>(V) + (line + head - heads - groups) * width, in, width * sizeof(T));
        return;
      }
      T *out = is_query ? query : call.data<T>(K) + (line + head - heads) * width;
      const float *cosines = (const float *)rope.data + position * 2 * half;
      const Tensor &norm = call.operand(is_query ? Q_NORM : K_NORM);
      if (!norm.data) return rotate(in, width, half, cosines, cosines + half, [](F v, int64_t, int) { return v; }, out);
      const F inverse = all(inverse_rms(in, width, eps));
      by_dtype(norm.dtype, [&](auto *weights) {
        weights = (decltype(weights))norm.data;
        rotate(in, width, half, cosines, cosines + half,
               [&](F v, int64_t i, int count) { return v * inverse * (load_some(weights + i, count) + offset); }, out);
      });
    });
  });
}
