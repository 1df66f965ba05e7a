// Attention over the cache: which blocks of which rows a thread computes, and how they become a row of y.
//
// A step of few rows is split by blocks of keys, since one row alone has too few heads for all threads; partial results
// meet in scratch. A step of many rows has items enough: each walks the blocks of a tile of rows for one key head. Both
// merge the same blocks in the same order, so a row gets the same bits from either.
#include "attention_block.h"

constexpr int TILE = 64;                     // queries that share what is read of the cache, if there are as many
constexpr int64_t FEW_ROWS = 16;             // up to here by blocks,
constexpr int64_t MOST_PARTIALS = 64 << 20;  // if their partial results fit in as many bytes

struct Attention {
  int64_t rows, groups, heads;      // key heads, query heads per key head
  int64_t size, blocks, tile_rows;  // of a Partial, of the longest context, of a tile
  Tile tile;
  int32_t *tiles;                   // [rows + 1]: the first row of each tile, and the end
  float *running, *block;           // [queries, size]: a Partial per query
  float *partials;                  // [groups, rows, heads, blocks, size], or null
  int64_t bytes;                    // of scratch, up to this thread's

  Attention(uint8_t *base, const Instruction &instruction, int thread) {
    const Tensor &q = instruction.operands[0], &k = instruction.operands[3];
    rows = q.dims[0], groups = k.dims[1], heads = q.dims[1] / groups;
    tile.dim = q.dims[2], tile.width = round_up(tile.dim, LANES), size = Partial::size(tile.width);
    blocks = ((int64_t)instruction.attributes[0] + KEYS - 1) / KEYS;
    tile_rows = heads < TILE ? TILE / heads : 1;
    if (tile_rows > rows) tile_rows = rows;
    const int64_t queries = heads * (tile_rows > groups ? tile_rows : groups);  // of a tile, or of all heads of a row
    const int64_t all = rows * groups * heads * blocks * size;
    const bool split = rows <= FEW_ROWS && all * (int64_t)sizeof(float) <= MOST_PARTIALS;
    Scratch scratch{base};
    partials = scratch.take<float>(split ? all : 0);
    if (!split) partials = nullptr;
    for (int i = 0; i <= thread; i++) {
      tiles = scratch.take<int32_t>(rows + 1);
      tile.counts = scratch.take<int32_t>(queries);
      tile.q = scratch.take<float>(queries * tile.width);
      tile.scores = scratch.take<float>(queries * KEYS);
      tile.lines = scratch.take<float>(LANES * tile.width);
      running = scratch.take<float>(split ? 0 : queries * size);
      block = scratch.take<float>(split ? 0 : queries * size);
    }
    bytes = scratch.used;
  }
};

int64_t attention_scratch(const Instruction &instruction, int threads) {
  return Attention(nullptr, instruction, threads - 1).bytes;
}

// A query's part of y: its values over the sum of their weights, times sigmoid(gate) if there is one.
template <class T>
INLINE void finish(Partial partial, const T *gate, T *y, int64_t dim) {
  const F total = all(partial.total());
  for (int64_t d = 0; d < dim; d += LANES) {
    const int count = (int)(dim - d);
    F out = load(partial.values + d) / total;
    if (gate) out = out * sigmoid(load_some(gate + d, count));
    store_some(y + d, out, count);
  }
}

INLINE void attention(const Call &call) {
  enum { Q, SLOTS, POSITIONS, K, V, GATE, Y };
  Attention at(call.scratch(), call.instruction, call.worker.index);
  const int32_t *slots = call.data<int32_t>(SLOTS), *positions = call.data<int32_t>(POSITIONS);
  const int64_t active = call.rows(call.operand(Q)), dim = at.tile.dim, width = at.tile.width;
  const int64_t all_heads = at.groups * at.heads, gate_width = call.operand(GATE).dims[1];
  auto live = [&](int64_t row) { return slots[row] != call.program.scratch_slot; };

  int64_t most = 1;  // blocks of the longest row
  for (int64_t row = 0; row < active; row++)
    if (live(row) && positions[row] / KEYS + 1 > most) most = positions[row] / KEYS + 1;
  // A tile holds rows of one slot, whose positions ascend: fewer where there would be too few tiles for all threads.
  int64_t tiles = 0, tile_rows = at.tile_rows;
  const int64_t alike = active * at.groups * (at.partials ? most : 1);
  while (tile_rows > 4 && alike < 2 * call.worker.threads * tile_rows) tile_rows /= 2;
  for (int64_t row = 0; row < active; row++)
    if (row == 0 || !live(row) || slots[row] != slots[row - 1] || row - at.tiles[tiles - 1] == tile_rows)
      at.tiles[tiles++] = (int32_t)row;
  at.tiles[tiles] = (int32_t)active;

  by_dtype(call.operand(Q).dtype, [&](auto *like) {
    using T = typename Pointed<decltype(like)>::type;
    auto read_tile = [&](int64_t tile, int64_t group, int64_t groups) {
      const int64_t row = at.tiles[tile], end = at.tiles[tile + 1];
      float *wide = at.tile.q;
      at.tile.key_heads = (int)groups, at.tile.queries = (int)((end - row) * at.heads);
      for (int query = 0; query < at.tile.queries; query++)
        at.tile.counts[query] = positions[row + query / at.heads] + 1;
      for (int64_t head = group * at.heads; head < (group + groups) * at.heads; head += at.heads)
        for (int64_t i = row; i < end; i++)
          for (int64_t j = head; j < head + at.heads; j++, wide += width) {
            const T *q = call.data<T>(Q) + (i * all_heads + j) * dim;
            for (int64_t d = 0; d < dim; d += LANES) store(wide + d, load_some(q + d, (int)(dim - d)));
          }
    };
    auto attend_block = [&](int64_t row, int64_t group, int64_t block, float *out, int64_t apart, int64_t heads_apart) {
      const int64_t first = (slots[row] * (int64_t)call.attribute(0) * at.groups + group) * dim;
      const T *keys = call.data<T>(K) + first, *values = call.data<T>(V) + first;
      attend(at.tile, keys, values, at.groups * dim, block * KEYS, out, apart, heads_apart);
    };
    auto write = [&](int64_t row, int64_t head, float *from) {
      T *y = call.data<T>(Y) + (row * all_heads + head) * dim;
      const T *gate = call.data<T>(GATE);
      if (gate) gate += (row + 1) * gate_width - (all_heads - head) * dim;
      if (live(row)) finish({from, width}, gate, y, dim);
      else __builtin_memset(y, 0, dim * sizeof(T));
    };

    if (at.partials) {
      auto partial = [&](int64_t group, int64_t row, int64_t head, int64_t block) {
        return at.partials + (((group * at.rows + row) * at.heads + head) * at.blocks + block) * at.size;
      };
      // Rows that stand alone are bound by memory, which is fastest if an item reads all key heads: as many as leave
      // enough items for all threads. Tiles of several rows are not, and have q of one key head in the cache.
      int64_t groups = at.groups;
      if (tiles < active) groups = 1;
      while (groups % 2 == 0 && tiles * most * (at.groups / groups) < 4 * call.worker.threads) groups /= 2;
      const int64_t parts = at.groups / groups, items = tiles * most * parts;
      call.worker.parallel(items, call.worker.grain(items), [&](int64_t item) {
        const int64_t group = item % parts * groups, block = item / parts % most, tile = item / parts / most;
        const int64_t row = at.tiles[tile];
        if (!live(row) || positions[at.tiles[tile + 1] - 1] < block * KEYS) return;
        read_tile(tile, group, groups);
        const int64_t apart = at.blocks * at.size;
        attend_block(row, group, block, partial(group, row, 0, block), apart, at.rows * at.heads * apart);
      });
      call.worker.parallel(active * all_heads, 1, [&](int64_t item) {
        const int64_t row = item / all_heads, head = item % all_heads;
        float *first = partial(head / at.heads, row, head % at.heads, 0);
        for (int64_t block = 1; live(row) && block <= positions[row] / KEYS; block++)
          Partial{first, width}.merge({first + block * at.size, width});
        write(row, head, first);
      });
    } else {
      // Late rows, which read the most keys, come first, so that no thread is left with a long one at the end.
      call.worker.parallel(at.groups * tiles, 1, [&](int64_t item) {
        const int64_t group = item / tiles, tile = tiles - 1 - item % tiles, row = at.tiles[tile];
        read_tile(tile, group, 1);
        const int64_t end = live(row) ? positions[at.tiles[tile + 1] - 1] / KEYS + 1 : 0;
        for (int64_t block = 0; block < end; block++) {
          attend_block(row, group, block, block ? at.block : at.running, at.size, 0);
          for (int query = 0; block && query < at.tile.queries; query++)
            if (at.tile.counts[query] > block * KEYS)
              Partial{at.running + query * at.size, width}.merge({at.block + query * at.size, width});
        }
        for (int query = 0; query < at.tile.queries; query++)
          write(row + query / at.heads, group * at.heads + query % at.heads, at.running + query * at.size);
      });
    }
  });
}
