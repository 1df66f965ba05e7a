// The gated delta rule, one token after the other: Yang et al., "Gated Delta Networks". Per value head, with a memory S
// [D, E], unit vectors q and k and a value v:
//   change = beta (v - decay S^T k),  S = decay S + k change^T,  out = S^T q
//
// No column of S sees another until the norm of `out`. So a head is cut into pieces of columns, and an item has its
// piece of all slots to itself: rows of one slot come in order, whoever else runs. Sums over D go in ascending order,
// so how wide a piece is changes no bit. In a prompt a piece stays in the first cache and its sums in registers; in
// decode memory is the limit, and wider pieces are read in longer stretches.
constexpr int PROMPT_VECTORS = WIDTH == 16 ? 4 : 2, DECODE_VECTORS = 2 * PROMPT_VECTORS;
constexpr int PROMPT_COLUMNS = PROMPT_VECTORS * LANES, DECODE_COLUMNS = DECODE_VECTORS * LANES;

// Sizes, and what lies in scratch.
struct Delta {
  enum { U, X, Z, BA, A_LOG, DT_BIAS, NORM, SLOTS, POSITIONS, MEMORY, Y };
  int64_t rows, heads, key_dim, value_dim, key_heads, shared;  // shared: value heads of one key head
  Instruction product;                                         // gates = x @ ba^T, as `linear` does it
  float *gates;                                                // [R, 2N]: beta | decay
  float *query, *key;                                          // [key heads, R, D], of length D^-1/2 and 1
  float *out;                                                  // [R, N, E], before the norm
  float *copies;                                               // [threads, D, DECODE_COLUMNS]
  int64_t bytes;

  Delta(Scratch scratch, const Instruction &instruction, int threads) {
    const Tensor &u = instruction.operands[U], &memory = instruction.operands[MEMORY];
    rows = u.dims[0], heads = memory.dims[1], key_dim = memory.dims[2], value_dim = memory.dims[3];
    key_heads = (u.dims[1] - heads * value_dim) / (2 * key_dim), shared = heads / key_heads;
    product = {};
    product.operands[0] = instruction.operands[X], product.operands[1] = instruction.operands[BA];
    scratch.take<uint8_t>(linear_scratch(product));  // the first part, for there `linear` looks for its own
    gates = scratch.take<float>(rows * 2 * heads);
    product.operands[3] = {gates, {rows, 2 * heads, 1, 1}, F32, 2};
    query = scratch.take<float>(key_heads * rows * key_dim);
    key = scratch.take<float>(key_heads * rows * key_dim);
    out = scratch.take<float>(rows * heads * value_dim);
    copies = scratch.take<float>(threads * key_dim * DECODE_COLUMNS);
    bytes = scratch.used;
  }
};

// ln(1 + e^x) = max(x, 0) + ln(1 + y) with y = e^-|x|, and ln(1 + y) = 2 artanh(s) with s = y / (2 + y) <= 1/3, whose
// Taylor series up to s^13 is within 2e-8 relative.
INLINE F softplus(F x) {
  const F y = exp(zero() - abs(x)), s = y / (y + all(2.0f)), square = s * s;
  F series = all(2.0f / 13);
  for (int n = 11; n > 0; n -= 2) series = fma(series, square, all(2.0f / (float)n));
  return fma(s, series, max(x, zero()));
}

// out = x / |x| * scale; 1e-6 under the root as in flash-linear-attention's l2norm.
template <class T>
INLINE void unit(const T *x, int64_t width, float scale, float *out) {
  F squares = zero();
  for (int64_t i = 0; i < width; i += LANES) {
    const F v = load_some(x + i, (int)(width - i));
    squares = fma(v, v, squares);
  }
  const float inverse = 1.0f / __builtin_sqrtf(sum(squares) + 1e-6f);
  for (int64_t i = 0; i < width; i += LANES)
    store_some(out + i, load_some(x + i, (int)(width - i)) * inverse * scale, (int)(width - i));
}

// Query and key of a key head, beta and decay of its value heads.
INLINE void prepare_delta(const Call &call, const Delta &delta, int64_t row, int64_t key_head) {
  const Tensor &u = call.operand(Delta::U);
  const int64_t dim = delta.key_dim, at = (key_head * delta.rows + row) * dim, first = key_head * delta.shared;
  by_dtype(u.dtype, [&](auto *like) {
    auto *heads = (decltype(like))u.data + row * u.dims[1];
    unit(heads + key_head * dim, dim, 1.0f / __builtin_sqrtf((float)dim), delta.query + at);
    unit(heads + (delta.key_heads + key_head) * dim, dim, 1.0f, delta.key + at);
  });
  float *beta = delta.gates + row * 2 * delta.heads + first, *decay = beta + delta.heads;
  const float *a_log = call.data<float>(Delta::A_LOG) + first, *dt_bias = call.data<float>(Delta::DT_BIAS) + first;
  for (int64_t i = 0; i < delta.shared; i += LANES) {
    const int count = (int)(delta.shared - i);
    store_some(beta + i, sigmoid(load_some(beta + i, count)), count);
    const F time = softplus(load_some(decay + i, count) + load_some(dt_bias + i, count));
    store_some(decay + i, exp(zero() - exp(load_some(a_log + i, count)) * time), count);
  }
}

// A piece of one head's memory, where it belongs or copied together: line d at data + d * stride.
struct Piece {
  float *data;
  int64_t stride;
};

// V vectors of columns. A single one may be cut off: then only its first `count` lanes are memory.
template <int V, class T>
INLINE F load_vector(const T *x, int v, int count) {
  return V > 1 ? load(x + v * LANES) : load_some(x, count);
}
template <int V>
INLINE void store_vector(float *x, int v, F f, int count) {
  if (V > 1) store(x + v * LANES, f);
  else store_some(x, f, count);
}

// What one row does to a piece.
struct Step {
  Piece from, to;
  float decay;
  const float *key, *query, *next_key;  // [D]
  int64_t dim;
  int count;
};

// recalled = S^T k
template <int V>
INLINE void recall(const Step &step, F *recalled) {
  for (int v = 0; v < V; v++) recalled[v] = zero();
  for (int64_t d = 0; d < step.dim; d++) {
    const F k = all(step.key[d]);
    for (int v = 0; v < V; v++)
      recalled[v] = fma(load_vector<V>(step.from.data + d * step.from.stride, v, step.count), k, recalled[v]);
  }
}

// to = decay from + k change^T, or k change^T where a slot begins; out = to^T q. With NEXT also
// recalled = to^T next_key: it spares the next row one reading.
template <int V, bool FRESH, bool NEXT>
INLINE void update(const Step &step, const F *change, F *out, F *recalled) {
  for (int v = 0; v < V; v++) out[v] = recalled[v] = zero();
  for (int64_t d = 0; d < step.dim; d++) {
    const F k = all(step.key[d]), q = all(step.query[d]), next_k = NEXT ? all(step.next_key[d]) : zero();
    for (int v = 0; v < V; v++) {
      const F old = FRESH ? zero() : load_vector<V>(step.from.data + d * step.from.stride, v, step.count) * step.decay;
      const F now = fma(change[v], k, old);
      out[v] = fma(now, q, out[v]);
      if (NEXT) recalled[v] = fma(now, next_k, recalled[v]);
      store_vector<V>(step.to.data + d * step.to.stride, v, now, step.count);
    }
  }
}

// All rows in order over V vectors of columns, from `column` of value head `head` on. While rows of one slot follow
// each other the piece is a copy with its lines side by side, for in memory they would share few sets of the cache; it
// goes back with the last of these rows.
template <int V>
INLINE void walk_rows(const Call &call, const Delta &delta, int64_t head, int64_t column, int count) {
  const int32_t *slots = call.data<int32_t>(Delta::SLOTS), *positions = call.data<int32_t>(Delta::POSITIONS);
  const Tensor &u = call.operand(Delta::U);
  const int64_t rows = call.rows(u), dim = delta.key_dim, width = delta.value_dim;
  const Piece copy{delta.copies + call.worker.index * dim * DECODE_COLUMNS, V * LANES};
  F change[V], out[V], recalled[V];
  bool copied = false;  // the row before left its slot's piece in `copy`, and `recalled`
  for (int64_t row = 0; row < rows; row++) {
    float *target = delta.out + (row * delta.heads + head) * width + column;
    if (slots[row] == call.program.scratch_slot) {
      for (int v = 0; v < V; v++) store_vector<V>(target, v, zero(), count);
      continue;
    }
    const bool fresh = positions[row] == 0;
    const bool next = row + 1 < rows && slots[row + 1] == slots[row] && positions[row + 1] != 0;
    const int64_t line = (slots[row] * delta.heads + head) * dim;
    const Piece memory{call.data<float>(Delta::MEMORY) + line * width + column, width};
    const int64_t at = (head / delta.shared * delta.rows + row) * dim;
    const float *gates = delta.gates + row * 2 * delta.heads + head, *key = delta.key + at;
    const float beta = gates[0], decay = gates[delta.heads];
    const Step step{copied ? copy : memory, next ? copy : memory, decay, key, delta.query + at, key + dim, dim, count};
    if (!fresh && !copied) recall<V>(step, recalled);
    by_dtype(u.dtype, [&](auto *like) {
      auto *value = (decltype(like))u.data + (row + 1) * u.dims[1] - (delta.heads - head) * width + column;
      for (int v = 0; v < V; v++) {
        const F wanted = load_vector<V>(value, v, count);
        change[v] = (fresh ? wanted : wanted - recalled[v] * decay) * beta;
      }
    });
    if (fresh && next) update<V, true, true>(step, change, out, recalled);
    else if (fresh) update<V, true, false>(step, change, out, recalled);
    else if (next) update<V, false, true>(step, change, out, recalled);
    else update<V, false, false>(step, change, out, recalled);
    for (int v = 0; v < V; v++) store_vector<V>(target, v, out[v], count);
    copied = next;
  }
}

// y = norm(out) * silu(z). Zero for padding, whose z may be anything.
INLINE void finish_delta(const Call &call, const Delta &delta, int64_t row, int64_t head) {
  const int64_t width = delta.value_dim, at = (row * delta.heads + head) * width;
  const Tensor &z = call.operand(Delta::Z), &norm = call.operand(Delta::NORM), &y = call.operand(Delta::Y);
  const bool live = call.data<int32_t>(Delta::SLOTS)[row] != call.program.scratch_slot;
  float *out = delta.out + at;
  by_dtype(norm.dtype, [&](auto *like) {
    normalize(out, (decltype(like))norm.data, width, (float)call.attribute(0), false, out);
  });
  by_dtype(y.dtype, [&](auto *like) {
    auto *gates = (decltype(like))z.data + (row + 1) * z.dims[1] - (delta.heads - head) * width;
    for (int64_t i = 0; i < width; i += LANES) {
      const int count = (int)(width - i);
      const F gate = load_some(gates + i, count), value = load_some(out + i, count) * gate * sigmoid(gate);
      store_some((decltype(like))y.data + at + i, live ? value : zero(), count);
    }
  });
}

INLINE void gated_delta(const Call &call) {
  const Delta delta(Scratch{call.scratch()}, call.instruction, call.worker.threads);
  linear(Call{delta.product, call.program, call.worker});
  const int32_t *slots = call.data<int32_t>(Delta::SLOTS);
  const int64_t rows = call.rows(call.operand(Delta::U)), keys = rows * delta.key_heads, outs = rows * delta.heads;
  call.worker.parallel(keys, call.worker.grain(keys), [&](int64_t item) {
    prepare_delta(call, delta, item / delta.key_heads, item % delta.key_heads);
  });
  const bool prompt = rows > 1 && slots[0] == slots[1];
  const int64_t piece = prompt || delta.heads < call.worker.threads ? PROMPT_COLUMNS : DECODE_COLUMNS;
  const int64_t pieces = (delta.value_dim + piece - 1) / piece;
  call.worker.parallel(delta.heads * pieces, 1, [&](int64_t item) {
    const int64_t head = item / pieces, begin = item % pieces * piece;
    const int64_t end = begin + piece < delta.value_dim ? begin + piece : delta.value_dim;
    int64_t at = begin;
    for (; at + DECODE_COLUMNS <= end; at += DECODE_COLUMNS) walk_rows<DECODE_VECTORS>(call, delta, head, at, LANES);
    for (; at + PROMPT_COLUMNS <= end; at += PROMPT_COLUMNS) walk_rows<PROMPT_VECTORS>(call, delta, head, at, LANES);
    for (; at < end; at += LANES) walk_rows<1>(call, delta, head, at, (int)(end - at));
  });
  call.worker.parallel(outs, call.worker.grain(outs), [&](int64_t item) {
    finish_delta(call, delta, item / delta.heads, item % delta.heads);
  });
}

int64_t gated_delta_scratch(const Instruction &instruction, int threads) {
  return Delta(Scratch{nullptr}, instruction, threads).bytes;
}
