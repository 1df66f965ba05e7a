// Which rows there are, and what they begin with. One thread does it: a step has few rows and these are a few bytes each.
constexpr int16_t COUNT_MASK = 0x7fff, PROMPT_BIT = (int16_t)0x8000;  // of counts, as in qpack_schemas/sampling.py

INLINE void rows_decode(const Call &call) {
  enum { SLOTS, SLOT_TOKEN, SLOT_POSITION, COUNTS, TOKENS, POSITIONS };
  call.worker.serial([&] {
    const int32_t *slots = call.data<int32_t>(SLOTS);
    const Tensor &counts = call.operand(COUNTS);
    const int64_t vocab = counts.dims[1];
    int32_t active = 0;
    for (int64_t row = 0; row < call.operand(SLOTS).dims[0]; row++) {
      const int32_t slot = slots[row];
      const bool live = slot != call.program.scratch_slot;
      const int32_t token = live ? call.data<int32_t>(SLOT_TOKEN)[slot] : 0;
      const int32_t position = live ? call.data<int32_t>(SLOT_POSITION)[slot] : 0;
      call.data<int32_t>(TOKENS)[row] = token;
      call.data<int32_t>(POSITIONS)[row] = position;
      if (!live) continue;
      active = (int32_t)row + 1;
      int16_t *mine = (int16_t *)counts.data + slot * vocab;
      if (position == 0) __builtin_memset(mine, 0, vocab * sizeof *mine);
      if ((mine[token] & COUNT_MASK) < COUNT_MASK) mine[token]++;
    }
    call.program.active = active;
  });
}

INLINE void rows_prefill(const Call &call) {
  enum { PROMPT, SLOT, START, LENGTH, COUNTS, TOKENS, SLOTS, POSITIONS, LAST };
  call.worker.serial([&] {
    const Tensor &counts = call.operand(COUNTS);
    const int32_t slot = *call.data<int32_t>(SLOT), start = *call.data<int32_t>(START), length = *call.data<int32_t>(LENGTH);
    int16_t *mine = (int16_t *)counts.data + slot * counts.dims[1];
    if (start == 0) __builtin_memset(mine, 0, counts.dims[1] * sizeof *mine);
    for (int64_t row = 0; row < call.operand(PROMPT).dims[0]; row++) {
      const bool live = row < length;
      const int32_t token = live ? call.data<int32_t>(PROMPT)[row] : 0;
      call.data<int32_t>(TOKENS)[row] = token;
      call.data<int32_t>(SLOTS)[row] = live ? slot : call.program.scratch_slot;
      call.data<int32_t>(POSITIONS)[row] = live ? start + (int32_t)row : 0;
      if (live) mine[token] |= PROMPT_BIT;
    }
    *call.data<int32_t>(LAST) = length - 1;
    call.program.active = length;
  });
}

INLINE void embed(const Call &call) {
  enum { TOKENS, TABLE, Y };
  const Tensor &table = call.operand(TABLE), &y = call.operand(Y);
  const int64_t width = y.dims[1];
  call.worker.parallel(call.rows(y), 1, [&](int64_t row) {
    const int64_t token = call.data<int32_t>(TOKENS)[row];
    by_dtype(table.dtype, [&](auto *from) {
      by_dtype(y.dtype, [&](auto *to) {
        auto *source = (decltype(from))table.data + token * width;
        auto *target = (decltype(to))y.data + row * width;
        for (int64_t i = 0; i < width; i += LANES)
          store_some(target + i, load_some(source + i, (int)(width - i)), (int)(width - i));
      });
    });
  });
}

// y = table[token] * scale, in the packed order of pack.h: the table of a tied head is the head's own weight.
INLINE void embed_int8(const Call &call) {
  enum { TOKENS, TABLE, SCALE, Y };
  const Tensor &table = call.operand(TABLE), &scale = call.operand(SCALE), &y = call.operand(Y);
  const int64_t width = y.dims[1], groups = table.dims[1] / GROUP;
  call.worker.parallel(call.rows(y), 1, [&](int64_t row) {
    const int64_t token = call.data<int32_t>(TOKENS)[row], tile = token / (BLOCKS * LANES), column = token % (BLOCKS * LANES);
    by_dtype(y.dtype, [&](auto *to) {
      auto *target = (decltype(to))y.data + row * width;
      for (int64_t i = 0; i < width; i += LANES) {
        const int64_t at = tile * groups + i / GROUP;
        const int8_t *codes = (const int8_t *)table.data + at * INT8_GROUP;
        float values[LANES];
        for (int j = 0; j < LANES; j++) {
          const int64_t k = i % GROUP + j;
          values[j] = codes[k / 4 * LINE + column * 4 + k % 4];
        }
        const float step = load_one(scale.data, scale.dtype, at * BLOCKS * LANES + column);
        store_some(target + i, load(values) * step, (int)(width - i));
      }
    });
  });
}

INLINE void take_rows(const Call &call) {
  enum { X, ROWS, Y };
  const Tensor &y = call.operand(Y);
  const int64_t bytes = y.dims[1] * (y.dtype == F32 ? 4 : 2);
  call.worker.serial([&] {
    __builtin_memcpy(y.data, call.data<uint8_t>(X) + *call.data<int32_t>(ROWS) * bytes, bytes);
  });
}
