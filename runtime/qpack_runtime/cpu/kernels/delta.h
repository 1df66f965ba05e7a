// The gated delta rule, one token after the other: Yang et al., "Gated Delta Networks". Per value head, with a memory S
// [D, E], unit vectors q and k, and the value v:
//   S' = decay S,  change = beta (v - S'^T k),  S = S' + k change^T,  out = S^T q
//
// No column of S sees another until the norm of `out`, so the work is cut into a head's columns: COLUMNS of them are what
// registers hold two sums of, and in a prompt what stays in the first cache. Sums over D go in ascending order.
constexpr int COLUMN_VECTORS = WIDTH == 16 ? 2 : 1, COLUMNS = COLUMN_VECTORS * LANES;

struct DeltaOperands {
  enum { U, X, Z, BA, A_LOG, DT_BIAS, NORM, SLOTS, POSITIONS, MEMORY, Y };
};

// Sizes, and what the steps of the rule read and leave in scratch.
struct Delta : DeltaOperands {
  int64_t rows, heads, key_dim, value_dim, key_heads, shared;  // value heads that share a key head
  Instruction product;                                          // gates = x @ ba^T, carried out by `linear`
  float *gates;                                                 // [R, 2N]: beta | decay
  float *query, *key;                                           // [key heads, R, D]: of length D^-1/2 and 1
  float *out;                                                   // [R, N, E]: before the norm
  float *columns;                                               // [threads, D, COLUMNS]

  Delta(Scratch scratch, const Instruction &instruction, int threads) : Delta(scratch, instruction, threads, nullptr) {}
  Delta(Scratch scratch, const Instruction &instruction, int threads, int64_t *bytes) {
    const Tensor *operands = instruction.operands;
    rows = operands[U].dims[0];
    heads = operands[MEMORY].dims[1], key_dim = operands[MEMORY].dims[2], value_dim = operands[MEMORY].dims[3];
    key_heads = (operands[U].dims[1] - heads * value_dim) / (2 * key_dim), shared = heads / key_heads;
    product = {};
    product.operands[0] = operands[X], product.operands[1] = operands[BA];
    scratch.take<uint8_t>(linear_scratch(product));  // first, for that is where `linear` looks for its own
    gates = scratch.take<float>(rows * 2 * heads);
    query = scratch.take<float>(rows * key_heads * key_dim);
    key = scratch.take<float>(rows * key_heads * key_dim);
    out = scratch.take<float>(rows * heads * value_dim);
    columns = scratch.take<float>(threads * key_dim * COLUMNS);
    product.operands[3] = {gates, {rows, 2 * heads, 1, 1}, F32, 2};
    if (bytes) *bytes = scratch.used;
  }
};

// ln(1 + e^x) = max(x, 0) + ln(1 + y) with y = e^-|x|, and ln(1 + y) = 2 artanh(s) with s = y / (2 + y) <= 1/3: its Taylor
// series up to s^13 is within 2e-8 relative.
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

// What a row's steps have in common: unit query and key of each key head, beta and decay of each value head.
INLINE void prepare_delta(const Call &call, const Delta &delta, int64_t row, int64_t key_head) {
  const int64_t dim = delta.key_dim, at = (key_head * delta.rows + row) * dim;
  by_dtype(call.operand(Delta::U).dtype, [&](auto *like) {
    auto *u = (decltype(like))call.operand(Delta::U).data + row * call.operand(Delta::U).dims[1];
    unit(u + key_head * dim, dim, 1.0f / __builtin_sqrtf((float)dim), delta.query + at);
    unit(u + (delta.key_heads + key_head) * dim, dim, 1.0f, delta.key + at);
  });
  const int64_t first = key_head * delta.shared;
  float *beta = delta.gates + row * 2 * delta.heads + first, *decay = beta + delta.heads;
  const float *a_log = call.data<float>(Delta::A_LOG) + first, *dt_bias = call.data<float>(Delta::DT_BIAS) + first;
  for (int64_t i = 0; i < delta.shared; i += LANES) {
    const int count = (int)(delta.shared - i);
    store_some(beta + i, sigmoid(load_some(beta + i, count)), count);
    const F rate = softplus(load_some(decay + i, count) + load_some(dt_bias + i, count));
    store_some(decay + i, exp(zero() - exp(load_some(a_log + i, count)) * rate), count);
  }
}

// Some columns of one head's memory, in memory or copied together.
struct ColumnsOf {
  float *data;
  int64_t stride;
};

// V vectors of columns; a single one may be cut off, and then only its first `count` lanes are memory.
template <int V>
INLINE F load_column(const float *x, int v, int count) {
  return V > 1 ? load(x + v * LANES) : load_some(x, count);
}
template <int V>
INLINE void store_column(float *x, int v, F f, int count) {
  if (V > 1) store(x + v * LANES, f);
  else store_some(x, f, count);
}

// sums = S^T k
template <int V>
INLINE void recall(ColumnsOf from, const float *key, int64_t dim, int count, F *sums) {
  for (int v = 0; v < V; v++) sums[v] = zero();
  for (int64_t d = 0; d < dim; d++)
    for (int v = 0; v < V; v++)
      sums[v] = fma(load_column<V>(from.data + d * from.stride, v, count), key[d], sums[v]);
}

// to = decay * from + k change^T, or k change^T where a slot begins; out = to^T q; with NEXT also recalled = to^T next_key,
// which the next row would otherwise read all of `to` for.
template <int V, bool FRESH, bool NEXT>
INLINE void update(ColumnsOf from, ColumnsOf to, float decay, const float *key, const float *query, const float *next_key,
                   int64_t dim, int count, const F *change, F *out, F *recalled) {
  for (int v = 0; v < V; v++) out[v] = recalled[v] = zero();
  for (int64_t d = 0; d < dim; d++)
    for (int v = 0; v < V; v++) {
      const F old = FRESH ? zero() : load_column<V>(from.data + d * from.stride, v, count) * decay;
      const F now = fma(change[v], key[d], old);
      out[v] = fma(now, query[d], out[v]);
      if (NEXT) recalled[v] = fma(now, next_key[d], recalled[v]);
      store_column<V>(to.data + d * to.stride, v, now, count);
    }
}

// V vectors of columns from `column` of value head `head` on, over all rows in order. In a run of rows of one slot the
// columns are copied together, where neighbouring lines of the cache are, and go back with the last row.
template <int V>
INLINE void walk_rows(const Call &call, const Delta &delta, int64_t head, int64_t column, int count) {
  const int32_t *slots = call.data<int32_t>(Delta::SLOTS), *positions = call.data<int32_t>(Delta::POSITIONS);
  const Tensor &u = call.operand(Delta::U);
  const int64_t rows = call.rows(u), dim = delta.key_dim;
  const ColumnsOf copied{delta.columns + call.worker.index * dim * COLUMNS, COLUMNS};
  F change[V], out[V], recalled[V];
  bool continued = false;  // the row before was of the same run: `copied` holds the columns, `recalled` what k recalls
  for (int64_t row = 0; row < rows; row++) {
    float *target = delta.out + (row * delta.heads + head) * delta.value_dim + column;
    if (slots[row] == call.program.scratch_slot) {
      for (int v = 0; v < V; v++) store_column<V>(target, v, zero(), count);
      continue;
    }
    const bool fresh = positions[row] == 0;
    const bool next = row + 1 < rows && slots[row + 1] == slots[row] && positions[row + 1] != 0;
    const int64_t at = (head / delta.shared * delta.rows + row) * dim;
    const float *key = delta.key + at, *query = delta.query + at, *next_key = key + dim;
    const float beta = delta.gates[row * 2 * delta.heads + head], decay = delta.gates[(row * 2 + 1) * delta.heads + head];
    const ColumnsOf memory{call.data<float>(Delta::MEMORY) + (slots[row] * delta.heads + head) * dim * delta.value_dim + column,
                           delta.value_dim};
    const ColumnsOf from = continued ? copied : memory, to = next ? copied : memory;
    if (!continued && !fresh) recall<V>(from, key, dim, count, recalled);
    by_dtype(u.dtype, [&](auto *like) {
      auto *value = (decltype(like))u.data + (row + 1) * u.dims[1] - (delta.heads - head) * delta.value_dim + column;
      if (next) __builtin_prefetch(value + u.dims[1]);  // rows are far apart
      for (int v = 0; v < V; v++) {
        const F wanted = V > 1 ? load(value + v * LANES) : load_some(value, count);
        change[v] = (fresh ? wanted : wanted - recalled[v] * decay) * beta;
      }
    });
    if (fresh && next) update<V, true, true>(from, to, decay, key, query, next_key, dim, count, change, out, recalled);
    else if (fresh) update<V, true, false>(from, to, decay, key, query, next_key, dim, count, change, out, recalled);
    else if (next) update<V, false, true>(from, to, decay, key, query, next_key, dim, count, change, out, recalled);
    else update<V, false, false>(from, to, decay, key, query, next_key, dim, count, change, out, recalled);
    for (int v = 0; v < V; v++) store_column<V>(target, v, out[v], count);
    continued = next;
  }
}

// y = norm(out) * silu(z); zero for padding, whose z may be anything.
INLINE void finish_delta(const Call &call, const Delta &delta, int64_t row, int64_t head) {
  const int64_t width = delta.value_dim, at = (row * delta.heads + head) * width;
  const bool live = call.data<int32_t>(Delta::SLOTS)[row] != call.program.scratch_slot;
  const Tensor &z = call.operand(Delta::Z), &norm = call.operand(Delta::NORM);
  float *out = delta.out + at;
  by_dtype(norm.dtype, [&](auto *like) {
    normalize(out, (decltype(like))norm.data, width, (float)call.attribute(0), false, out);
  });
  by_dtype(z.dtype, [&](auto *like) {
    auto *gate = (decltype(like))z.data + (row + 1) * z.dims[1] - (delta.heads - head) * width;
    auto *y = (decltype(like))call.operand(Delta::Y).data + at;
    for (int64_t i = 0; i < width; i += LANES) {
      const int count = (int)(width - i);
      const F g = load_some(gate + i, count);
      store_some(y + i, live ? load_some(out + i, count) * g * sigmoid(g) : zero(), count);
    }
  });
}

INLINE void gated_delta(const Call &call) {
  const Delta delta(Scratch{call.scratch()}, call.instruction, call.worker.threads);
  linear(Call{delta.product, call.program, call.worker});
  const int64_t rows = call.rows(call.operand(Delta::U));
  const int64_t keys = rows * delta.key_heads, outs = rows * delta.heads;
  call.worker.parallel(keys, call.worker.grain(keys), [&](int64_t item) {
    prepare_delta(call, delta, item / delta.key_heads, item % delta.key_heads);
  });
  // An item has its columns of all slots to itself, so rows of one slot come in order whoever else runs.
  const int64_t pieces = (delta.value_dim + COLUMNS - 1) / COLUMNS;
  call.worker.parallel(delta.heads * pieces, 1, [&](int64_t item) {
    const int64_t head = item / pieces, begin = item % pieces * COLUMNS, left = delta.value_dim - begin;
    if (left >= COLUMNS && COLUMN_VECTORS > 1) return walk_rows<COLUMN_VECTORS>(call, delta, head, begin, COLUMNS);
    for (int64_t at = 0; at < left && at < COLUMNS; at += LANES) walk_rows<1>(call, delta, head, begin + at, (int)(left - at));
  });
  call.worker.parallel(outs, call.worker.grain(outs), [&](int64_t item) {
    finish_delta(call, delta, item / delta.heads, item % delta.heads);
  });
}

int64_t gated_delta_scratch(const Instruction &instruction, int threads) {
  int64_t bytes;
  Delta(Scratch{nullptr}, instruction, threads, &bytes);
  return bytes;
}
