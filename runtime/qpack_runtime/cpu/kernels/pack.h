// The order of weights on a CPU, in which a product reads memory straight through. Sixty-four outputs n are four blocks of
// sixteen lanes; a group is 128 inputs k.
//
//   int4  codes uint8 [N/64, K/128, 16, 4, 16, 4]: line l, block b, lane i, byte j holds k = 8l + j in its low and
//         k = 8l + 4 + j in its high four bits, both 0 .. 15, standing for -8 .. 7
//   int8  codes int8 [N/64, K/128, 32, 4, 16, 4]: line l, block b, lane i, byte j holds k = 4l + j, -127 .. 127
//   scale, zero  [N/64, K/128, 4, 16], of the dtype that the bundle has
//
// So four neighbouring inputs of an output lie in one 32-bit lane, which is what vpdpbusd, vpmaddubsw and sdot
// multiply. N is a multiple of 64 (as in Marlin's layout; int8 and its scales are padded with zeros up to it), K of 128.
constexpr int GROUP = 128, BLOCKS = 4, LINE = BLOCKS * LANES * 4;
constexpr int INT4_GROUP = GROUP / 8 * LINE, INT8_GROUP = GROUP / 4 * LINE;  // bytes of a group of sixty-four outputs

// Sixty-four outputs and one group from Marlin words, whose order docs/format.md gives: nibble p0 + 2 p1 + 4 p2 of word
// 128 nt + 16 g + 4 t + j of line kt is k = 16 kt + 8 p0 + 2 t + p2, n = 64 nt + 16 j + 8 p1 + g.
INLINE void pack_int4_group(const int32_t *words, int64_t n, int64_t tile, int64_t group, uint8_t *codes) {
  for (int kt = 0; kt < GROUP / 16; kt++) {
    const uint32_t *line = (const uint32_t *)words + (group * 8 + kt) * 2 * n + 128 * tile;
    for (int j = 0; j < BLOCKS; j++) {
      uint8_t value[LANES][16];  // [n][k within 16]
      for (int g = 0; g < 8; g++)
        for (int t = 0; t < 4; t++) {
          const uint32_t word = line[16 * g + 4 * t + j];
          for (int p = 0; p < 8; p++) value[8 * (p >> 1 & 1) + g][8 * (p & 1) + 2 * t + (p >> 2)] = word >> (4 * p) & 15;
        }
      for (int half = 0; half < 2; half++)
        for (int lane = 0; lane < LANES; lane++)
          for (int byte = 0; byte < 4; byte++)
            codes[(kt * 2 + half) * LINE + (j * LANES + lane) * 4 + byte] =
                (uint8_t)(value[lane][8 * half + byte] | value[lane][8 * half + 4 + byte] << 4);
    }
  }
}

INLINE void pack_int8_group(const int8_t *values, int64_t k, int64_t n, int64_t tile, int64_t group, int8_t *codes) {
  for (int column = 0; column < BLOCKS * LANES; column++) {
    const int64_t row = tile * BLOCKS * LANES + column;
    const bool real = row < n;
    for (int i = 0; i < GROUP; i++) codes[i / 4 * LINE + column * 4 + i % 4] = real ? values[row * k + group * GROUP + i] : 0;
  }
}

// What a group of a tile has per output, scales or zero points of `bytes` bytes each: from Marlin's order [K/128, N], in
// which stored[64 b + 8 g + m] is that of 64 b + g + 8 m, or from int8's [N, K/128].
INLINE void pack_group_values(const uint8_t *values, int bytes, bool marlin, int64_t k, int64_t n, int64_t tile, int64_t group, uint8_t *packed) {
  for (int column = 0; column < BLOCKS * LANES; column++) {
    const int64_t row = tile * BLOCKS * LANES + column;
    const int64_t at = marlin ? group * n + tile * BLOCKS * LANES + 8 * (column % 8) + column / 8 : row * (k / GROUP) + group;
    if (row < n) __builtin_memcpy(packed + column * bytes, values + at * bytes, bytes);
    else __builtin_memset(packed + column * bytes, 0, bytes);
  }
}
