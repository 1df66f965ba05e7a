// softmax(q k^T / sqrt(D)) v over one block of KEYS positions, which begins at a multiple of KEYS, and how blocks add
// up: Milakov & Gimelshein, "Online normalizer calculation for softmax", in the blocks of Dao et al., "FlashAttention".
//
// A query is one head of one row. Queries that read the same keys are computed together, but what each gets does not
// depend on its company: lanes run along D and are added in the tree of `sum`, then keys ascend, then blocks; and a key
// behind a query's position takes no part in it, not even times 0.
constexpr int KEYS = 128;
// Queries, keys and registers of values at a time: as many sums as there are registers for.
#if defined(__AVX512F__)
constexpr int TOGETHER = 4, STEP = 4, CHUNKS = 4;
#elif defined(__AVX2__)
constexpr int TOGETHER = 3, STEP = 2, CHUNKS = 2;
#elif defined(__ARM_NEON)
constexpr int TOGETHER = 2, STEP = 2, CHUNKS = 2;
#else
constexpr int TOGETHER = 1, STEP = 2, CHUNKS = 2;
#endif

constexpr int DIRECT = 8;  // queries for which keys and values are read as they lie in memory, again for each TOGETHER

template <int N> struct Count { static constexpr int value = N; };

// Calls body(Count<M>, first) for runs of M queries, M from TOGETHER down to 1.
template <int M = TOGETHER, class Body>
INLINE void by_queries(int first, int queries, const Body &body) {
  for (; first + M <= queries; first += M) body(Count<M>{}, first);
  if constexpr (M > 1) by_queries<M - 1>(first, queries, body);
}

// Lane i: a[i] + a[i + H] where bit H of i is clear, b[i - H] + b[i] where it is set. So four steps make the sums of
// sixteen registers, each in the tree of `sum`.
template <int H>
INLINE F add_halves(F a, F b) {
#define KEPT(i) ((i) & H ? WIDTH + (i) : (i))
#define CROSSED(i) ((i) & H ? WIDTH + (i) - H : (i) + H)
#define FOUR(of, i) of(i), of(i + 1), of(i + 2), of(i + 3)
#if defined(__AVX512F__)
#define EVERY(of) FOUR(of, 0), FOUR(of, 4), FOUR(of, 8), FOUR(of, 12)
#elif defined(__AVX2__)
#define EVERY(of) FOUR(of, 0), FOUR(of, 4)
#else
#define EVERY(of) FOUR(of, 0)
#endif
  F sums;
  EACH_PART {
    if constexpr (H >= WIDTH) {
      const F &from = p & H / WIDTH ? b : a;
      sums.v[p] = from.v[p & ~(H / WIDTH)] + from.v[p | H / WIDTH];
    } else {
      sums.v[p] = __builtin_shufflevector(a.v[p], b.v[p], EVERY(KEPT)) +
                  __builtin_shufflevector(a.v[p], b.v[p], EVERY(CROSSED));
    }
  }
  return sums;
#undef KEPT
#undef CROSSED
#undef FOUR
#undef EVERY
}

// Products of M queries [M, width] with up to sixteen keys of `width` values, `stride` apart, to out[m * KEYS + key].
// Keys from `count` on are not read.
template <int M, class T>
INLINE void multiply_keys(const float *q, int64_t width, const T *keys, int64_t stride, int count, float *out) {
  constexpr int APART = LANES / STEP;
  F sums[M][APART];
  for (int j = 0; j < APART; j++) {
    const T *key[STEP];
    for (int i = 0; i < STEP; i++) key[i] = keys + (j + APART * i < count ? j + APART * i : count - 1) * stride;
    F totals[M][STEP] = {};
    for (int64_t d = 0; d < width; d += LANES) {
      F k[STEP];
#pragma GCC unroll 4
      for (int i = 0; i < STEP; i++) k[i] = load(key[i] + d);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        const F x = load(q + m * width + d);
#pragma GCC unroll 4
        for (int i = 0; i < STEP; i++) totals[m][i] = fma(x, k[i], totals[m][i]);
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      if constexpr (STEP == 4)
        sums[m][j] =
            add_halves<4>(add_halves<8>(totals[m][0], totals[m][2]), add_halves<8>(totals[m][1], totals[m][3]));
      else
        sums[m][j] = add_halves<8>(totals[m][0], totals[m][1]);
    }
  }
  for (int m = 0; m < M; m++) {
    if constexpr (STEP == 2)
      for (int j = 0; j < 4; j++) sums[m][j] = add_halves<4>(sums[m][j], sums[m][j + 4]);
    store(out + m * KEYS, add_halves<1>(add_halves<2>(sums[m][0], sums[m][2]), add_halves<2>(sums[m][1], sums[m][3])));
  }
}

// out[m * apart ..] += weights[m * KEYS + key] * values[key] for keys begin .. end-1, C registers of each.
template <int M, int C, class T>
INLINE void add_columns(const float *weights, const T *values, int64_t stride, int begin, int end, float *out,
                        int64_t apart) {
  F totals[M][C];
#pragma GCC unroll 4
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) totals[m][c] = load(out + m * apart + c * LANES);
  for (int key = begin; key < end; key++) {
    F v[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) v[c] = load(values + key * stride + c * LANES);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const F weight = all(weights[m * KEYS + key]);
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) totals[m][c] = fma(weight, v[c], totals[m][c]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) store(out + m * apart + c * LANES, totals[m][c]);
}

template <int M, class T>
INLINE void add_values(const float *weights, const T *values, int64_t stride, int begin, int end, float *out,
                       int64_t apart, int64_t width) {
  int64_t d = 0;
  for (; d + CHUNKS * LANES <= width; d += CHUNKS * LANES)
    add_columns<M, CHUNKS>(weights, values + d, stride, begin, end, out + d, apart);
  for (; d < width; d += LANES) add_columns<M, 1>(weights, values + d, stride, begin, end, out + d, apart);
}

// What a query got from some blocks: the sum of weight * value [width], the largest score, and the sum of the weights
// e^(score - largest).
struct Partial {
  float *values;
  int64_t width;

  static INLINE int64_t size(int64_t width) { return round_up(width + 2, LANES); }
  INLINE float &largest() const { return values[width]; }
  INLINE float &total() const { return values[width + 1]; }

  // Adds the block behind those that are in.
  INLINE void merge(Partial block) const {
    const float a = largest(), b = block.largest(), top = b > a ? b : a;
    float factors[LANES];
    store(factors, exp(keep(all(a - top), 1, b - top)));
    for (int64_t d = 0; d < width + 2; d += LANES)
      store(values + d, fma(load(block.values + d), factors[1], load(values + d) * factors[0]));
    largest() = top;
  }
};

// Scores of the first `keys` of a block become weights; `out` gets all but values, which are 0.
INLINE void soften(float *scores, int keys, float scale, Partial out) {
  const float nothing = -__builtin_inff();
  F top = all(nothing), sums = zero();
  for (int i = 0; i < keys; i += LANES) {
    F s = load(scores + i) * scale;
    if (keys - i < LANES) s = keep(s, keys - i, nothing);
    store(scores + i, s);
    top = max(s, top);
  }
  const float most = largest(top);
  for (int i = 0; i < keys; i += LANES) {
    const F weights = exp(load(scores + i) - all(most));
    store(scores + i, weights);
    sums = sums + weights;
  }
  __builtin_memset(out.values, 0, Partial::size(out.width) * sizeof(float));
  out.largest() = most, out.total() = sum(sums);
}

// Queries that read the same positions of one slot, and a thread's room for them. Those of one key head are neighbours.
struct Tile {
  int64_t dim, width;      // D, and D padded with zeros to whole registers
  int key_heads, queries;  // of each key head
  int32_t *counts;         // [queries], ascending: a query reads keys 0 .. count-1
  float *q;                // [key_heads, queries, width]
  float *scores;           // [key_heads, queries, KEYS]
  float *lines;            // [16, width]: keys or values as float32
};

// Calls body(lines, stride) with `count` lines of memory as they are, or as float32 in tile.lines if many queries read
// them. Has `next`, sixteen lines or null, brought into the second-level cache meanwhile.
template <class T, class Body>
INLINE void with_lines(const Tile &tile, const T *lines, int64_t stride, int count, const T *next, const Body &body) {
  for (int line = 0; next && line < LANES; line++)
    for (int64_t d = 0; d < tile.dim; d += 64 / (int64_t)sizeof(T)) __builtin_prefetch(next + line * stride + d, 0, 2);
  if (tile.dim == tile.width && (sizeof(T) == sizeof(float) || tile.queries <= DIRECT)) return body(lines, stride);
  for (int line = 0; line < count; line++)
    for (int64_t d = 0; d < tile.dim; d += LANES)
      store(tile.lines + line * tile.width + d, load_some(lines + line * stride + d, (int)(tile.dim - d)));
  body((const float *)tile.lines, tile.width);
}

// The block that begins at position `begin`, for every query of the tile that reads any of it. Keys and values
// [positions, key heads, dim] are `stride` from one position to the next. Writes a Partial per query, `apart` floats
// from one to the next and `heads_apart` from one key head to the next.
template <class T>
void attend(const Tile &tile, const T *keys, const T *values, int64_t stride, int64_t begin, float *out, int64_t apart,
            int64_t heads_apart) {
  const int64_t width = tile.width;
  const float scale = 1.0f / __builtin_sqrtf((float)tile.dim);
  auto reads = [&](int query) {  // keys of this block
    const int64_t count = tile.counts[query] - begin;
    return count < 0 ? 0 : count < KEYS ? (int)count : KEYS;
  };
  const int most = reads(tile.queries - 1);
  const bool last = tile.counts[tile.queries - 1] <= begin + KEYS;
  keys += begin * stride, values += begin * stride;

  // Sixteen positions of all key heads, then the next: so memory is read from one end to the other.
  for (int first = 0; first < most; first += LANES)
    for (int head = 0; head < tile.key_heads; head++) {
      const int count = most - first < LANES ? most - first : LANES;
      const T *line = keys + first * stride + head * tile.dim;
      const T *next = first + LANES < most ? line + LANES * stride : values + head * tile.dim;
      with_lines(tile, line, stride, count, next, [&](auto *lines, int64_t between) {
        by_queries(0, tile.queries, [&](auto m, int query) {
          constexpr int M = decltype(m)::value;
          const int at = head * tile.queries + query;
          if (first < reads(query + M - 1))
            multiply_keys<M>(tile.q + at * width, width, lines, between, count, tile.scores + at * KEYS + first);
        });
      });
    }
  for (int head = 0; head < tile.key_heads; head++)
    for (int query = 0; query < tile.queries; query++)
      if (reads(query))
        soften(tile.scores + (head * tile.queries + query) * KEYS, reads(query), scale,
               {out + head * heads_apart + query * apart, width});
  for (int first = 0; first < most; first += LANES)
    for (int head = 0; head < tile.key_heads; head++) {
      const int count = most - first < LANES ? most - first : LANES;
      const T *line = values + first * stride + head * tile.dim;
      const T *next = last ? nullptr : keys + KEYS * stride + head * tile.dim;
      if (first + LANES < most) next = line + LANES * stride;
      with_lines(tile, line, stride, count, next, [&](auto *lines, int64_t between) {
        by_queries(0, tile.queries, [&](auto m, int query) {
          constexpr int M = decltype(m)::value;
          const float *weights = tile.scores + (head * tile.queries + query) * KEYS + first;
          float *mine = out + head * heads_apart + query * apart;
          auto own = [&](int i) {  // of these sixteen
            const int keys_left = reads(query + i) - first;
            return keys_left < 0 ? 0 : keys_left < LANES ? keys_left : LANES;
          };
          // Those that the first query reads, all read; what the others read beyond, each reads by itself.
          if (own(0)) add_values<M>(weights, lines, between, 0, own(0), mine, apart, width);
          for (int i = 1; i < M; i++)
            if (own(i) > own(0))
              add_values<1>(weights + i * KEYS, lines, between, own(0), own(i), mine + i * apart, apart, width);
        });
      });
    }
}
