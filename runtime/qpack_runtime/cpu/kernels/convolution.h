// silu of a depthwise convolution over the last W positions of a slot; the lanes are channels.
constexpr int KEPT_TAPS = 4;
constexpr int PIECE_BLOCKS = 8;  // vectors of channels of an item: what lies side by side in a row is read together

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

// Sixteen neighbouring lines of [channels, taps] as columns: one tap, a channel per lane. The first columns are turned
// at once and kept: for W = 4, which published models have, these are all.
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

struct Convolution {
  enum { X, WEIGHT, SLOTS, POSITIONS, RING, Y };
};

// A run, rows begin .. end-1, over the channels first .. first+left-1. Within it the window is read from x, which holds
// what the ring would; the ring gives what was before the run and takes its last W rows.
template <class T, class Weight>
INLINE void convolve(const Call &call, const Columns<Weight> *weights, int64_t begin, int64_t end, int64_t first,
                     int64_t left) {
  const Tensor &x = call.operand(Convolution::X);
  const int64_t width = x.dims[1], channels = call.operand(Convolution::Y).dims[1], taps = weights->taps;
  const int64_t slot = call.data<int32_t>(Convolution::SLOTS)[begin];
  T *ring = call.data<T>(Convolution::RING) + (slot * channels + first) * taps;
  for (int64_t row = begin; row < end; row++) {
    const T *in = (const T *)x.data + row * width + first;
    T *out = call.data<T>(Convolution::Y) + row * channels + first;
    const int64_t position = call.data<int32_t>(Convolution::POSITIONS)[row], own = position % taps;
    const int64_t reach = position < taps - 1 ? position : taps - 1;  // positions before 0 count as zero
    for (int64_t at = 0; at < left; at += LANES) {
      const int count = (int)(left - at);
      Columns<T> past;
      if (reach > row - begin) past.turn(ring + at * taps, taps, count);
      F total = zero();
      for (int64_t back = reach; back >= 0; back--) {
        const F value = back <= row - begin ? load_some(in - back * width + at, count)
                                            : past[own >= back ? own - back : own - back + taps];
        total = fma(weights[at / LANES][taps - 1 - back], value, total);
      }
      store_some(out + at, total * sigmoid(total), count);
      if (row >= end - taps)
        for (int lane = 0; lane < LANES && lane < count; lane++) ring[(at + lane) * taps + own] = in[at + lane];
    }
  }
}

// Every item has its channels of all slots to itself and walks the rows in order.
INLINE void causal_conv1d(const Call &call) {
  const Tensor &x = call.operand(Convolution::X), &weight = call.operand(Convolution::WEIGHT);
  const int32_t *slots = call.data<int32_t>(Convolution::SLOTS);
  const int32_t *positions = call.data<int32_t>(Convolution::POSITIONS);
  const int64_t rows = call.rows(x), channels = weight.dims[0], taps = weight.dims[1];
  const int64_t piece = PIECE_BLOCKS * LANES, items = (channels + piece - 1) / piece;
  call.worker.parallel(items, call.worker.grain(items), [&](int64_t item) {
    const int64_t first = item * piece, left = channels - first < piece ? channels - first : piece;
    by_dtype(x.dtype, [&](auto *like) {
      by_dtype(weight.dtype, [&](auto *weight_like) {
        using T = typename Pointed<decltype(like)>::type;
        using Weight = typename Pointed<decltype(weight_like)>::type;
        Columns<Weight> weights[PIECE_BLOCKS];
        for (int64_t at = 0; at < left; at += LANES)
          weights[at / LANES].turn((const Weight *)weight.data + (first + at) * taps, taps, (int)(left - at));
        for (int64_t begin = 0, end; begin < rows; begin = end) {
          end = end_of_run(slots, positions, begin, rows);
          if (slots[begin] != call.program.scratch_slot) {
            convolve<T>(call, weights, begin, end, first, left);
            continue;
          }
          for (int64_t row = begin; row < end; row++)
            __builtin_memset(call.data<T>(Convolution::Y) + row * channels + first, 0, left * sizeof(T));
        }
      });
    });
  });
}
