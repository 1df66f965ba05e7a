// silu of a depthwise convolution over the last W positions of a slot; the lanes are channels.
constexpr int KEPT_TAPS = 4, CONV_BLOCKS = 8;

// Bits of a value, whatever else the memory is read as.
template <class T> struct Bits { typedef uint16_t type __attribute__((may_alias)); };
template <> struct Bits<float> { typedef uint32_t type __attribute__((may_alias)); };

// [16, 4] -> [4, 16]. The compiler makes shuffles of this loop, but only as it stands: one statement a column, nothing
// aliased, not unrolled before it is looked at.
template <class Word>
INLINE void turn_four(const Word *__restrict from, Word *__restrict to) {
#pragma GCC unroll 1
  for (int lane = 0; lane < LANES; lane++) {
    to[lane] = from[4 * lane];
    to[LANES + lane] = from[4 * lane + 1];
    to[2 * LANES + lane] = from[4 * lane + 2];
    to[3 * LANES + lane] = from[4 * lane + 3];
  }
}

// Sixteen neighbouring lines of [channels, taps] as columns: one tap, a channel per lane. The first columns are turned at
// once and kept, which for W = 4, the width of every published model, are all.
template <class T>
struct Columns {
  const T *lines;
  int64_t taps;
  int count;  // of channels; the lanes behind it are zero
  F kept[KEPT_TAPS];

  INLINE void turn(const T *from, int64_t taps_, int count_) {
    lines = from, taps = taps_, count = count_;
    if (taps == KEPT_TAPS && count >= LANES) {
      T columns[KEPT_TAPS * LANES];
      using Word = typename Bits<T>::type;
      turn_four((const Word *)from, (Word *)columns);
      for (int tap = 0; tap < KEPT_TAPS; tap++) kept[tap] = load(columns + tap * LANES);
    } else {
      for (int tap = 0; tap < KEPT_TAPS && tap < taps; tap++) kept[tap] = column(tap);
    }
  }

  INLINE F column(int64_t tap) const {
    T values[LANES] = {};
    for (int lane = 0; lane < LANES && lane < count; lane++) values[lane] = lines[lane * taps + tap];
    return load(values);
  }

  INLINE F operator[](int64_t tap) const { return tap < KEPT_TAPS ? kept[tap] : column(tap); }
};

// Neighbouring rows of one slot at consecutive positions: a piece of a prompt, or one row.
INLINE int64_t end_of_run(const int32_t *slots, const int32_t *positions, int64_t begin, int64_t rows) {
  int64_t end = begin + 1;
  while (end < rows && slots[end] == slots[begin] && positions[end] == positions[end - 1] + 1) end++;
  return end;
}

// Every item has its channels of all slots to itself and walks the rows in order. Within a run the window is read from x,
// which holds what the ring would; the ring gives what was before the run and takes its last W rows.
INLINE void causal_conv1d(const Call &call) {
  enum { X, WEIGHT, SLOTS, POSITIONS, RING, Y };
  const Tensor &x = call.operand(X), &weight = call.operand(WEIGHT), &y = call.operand(Y);
  const int32_t *slots = call.data<int32_t>(SLOTS), *positions = call.data<int32_t>(POSITIONS);
  const int64_t rows = call.rows(x), width = x.dims[1], channels = weight.dims[0], taps = weight.dims[1];
  const int64_t blocks = (channels + LANES - 1) / LANES, items = (blocks + CONV_BLOCKS - 1) / CONV_BLOCKS;
  call.worker.parallel(items, call.worker.grain(items), [&](int64_t item) {
    by_dtype(x.dtype, [&](auto *like) {
      by_dtype(weight.dtype, [&](auto *weight_like) {
        using T = typename Pointed<decltype(like)>::type;
        using Weight = typename Pointed<decltype(weight_like)>::type;
        const int64_t first = item * CONV_BLOCKS * LANES;
        const int64_t left = channels - first < CONV_BLOCKS * LANES ? channels - first : CONV_BLOCKS * LANES;
        Columns<Weight> weights[CONV_BLOCKS];
        for (int64_t at = 0; at < left; at += LANES)
          weights[at / LANES].turn((const Weight *)weight.data + (first + at) * taps, taps, (int)(left - at));
        for (int64_t begin = 0, end; begin < rows; begin = end) {
          end = end_of_run(slots, positions, begin, rows);
          const bool live = slots[begin] != call.program.scratch_slot;
          T *ring = (T *)call.operand(RING).data + (slots[begin] * channels + first) * taps;
          for (int64_t row = begin; row < end; row++) {
            const T *in = (const T *)x.data + row * width + first;
            T *out = (T *)y.data + row * channels + first;
            const int64_t position = positions[row], own = position % taps;
            const int64_t before = position < taps - 1 ? position : taps - 1;
            for (int64_t at = 0; at < left; at += LANES) {
              const int count = (int)(left - at);
              F total = zero();
              if (live) {
                const Columns<Weight> &w = weights[at / LANES];
                Columns<T> past;
                if (before > row - begin) past.turn(ring + at * taps, taps, count);
                for (int64_t back = before; back >= 0; back--) {
                  const F value = back <= row - begin ? load_some(in - back * width + at, count)
                                                      : past[own >= back ? own - back : own - back + taps];
                  total = fma(w[taps - 1 - back], value, total);
                }
                if (row >= end - taps)
                  for (int lane = 0; lane < LANES && lane < count; lane++) ring[(at + lane) * taps + own] = in[at + lane];
              }
              store_some(out + at, total * sigmoid(total), count);
            }
          }
        }
      });
    });
  });
}
