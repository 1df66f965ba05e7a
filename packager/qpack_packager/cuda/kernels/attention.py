"""Attention of decode rows over the cache of their slots: each split of the context by itself, then the splits joined.

A split is SPLIT positions, counted from 0. Its program walks BLOCK keys at a time, ascending, so what a row gets does
not depend on the bucket. Milakov & Gimelshein, "Online normalizer calculation for softmax"; Dao et al.,
"Flash-Decoding". Exponents are to the base 2.
"""

# pyright: basic

import triton
import triton.language as tl

from qpack_packager.cuda.kernels import planes

LOG2_E = tl.constexpr(1.4426950408889634)
SPLITS_AT_ONCE = tl.constexpr(8)  # loads in flight for `attention_combine`


@triton.jit
def attention_split(
    q, k, v, slots, positions, partial, stats,
    A: tl.constexpr, G: tl.constexpr, D: tl.constexpr, CONTEXT: tl.constexpr, SCRATCH: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One split of one row, for the A / G query heads that share a key head. Of q [R, A, D] and k, v [lines, G, D],
    line = slot * CONTEXT + position; partial float32 [R, A, SPLITS, D] = sum of weight * value, not yet divided, and
    stats float32 [R, A, SPLITS, 2] = largest score, sum of weights. A split that begins behind the position, and any of
    a padding row, is left as it is. HEADS is A / G rounded up to a power of two, at least 8; SPLIT a multiple of BLOCK.
    Grid (G, splits of the bucket's context, R)."""
    tl.static_assert(SPLIT % BLOCK == 0)
    group = tl.program_id(0)
    split = tl.program_id(1)
    row = tl.program_id(2)
    slot = tl.load(slots + row)
    position = tl.load(positions + row)
    start = split * SPLIT
    if (slot != SCRATCH) & (start <= position):
        end = tl.minimum(start + SPLIT, position + 1)
        i = tl.arange(0, HEADS)
        heads = group * (A // G) + i
        real = i < A // G
        d = tl.arange(0, D)
        query = tl.load(q + (row * A + heads)[None, :] * D + d[:, None], mask=real[None, :], other=0.0)
        lines = slot.to(tl.int64) * CONTEXT * (G * D) + group * D
        top = tl.full((HEADS,), float("-inf"), tl.float32)
        weight = tl.zeros((HEADS,), tl.float32)
        out = tl.zeros((D, HEADS), tl.float32)
        for first in range(start, end, BLOCK):
            at = first + tl.arange(0, BLOCK)
            seen = at < end  # what lies behind was never written, may be NaN, and must not even be multiplied by 0
            line = lines + at[:, None] * (G * D) + d[None, :]
            key = tl.load(k + line, mask=seen[:, None], other=0.0)
            value = tl.load(v + line, mask=seen[:, None], other=0.0)
            scores = tl.dot(key, query, input_precision="ieee") * (D**-0.5 * LOG2_E)
            scores = tl.where(seen[:, None], scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 0))
            weights = tl.exp2(scores - higher[None, :])
            fade = tl.exp2(top - higher)
            weight = weight * fade + tl.sum(weights, 0)
            summed = tl.dot(tl.trans(value), weights.to(value.dtype), input_precision="ieee")
            out = out * fade[None, :] + summed
            top = higher
        seat = (row * A + heads).to(tl.int64) * SPLITS + split
        tl.store(partial + seat[None, :] * D + d[:, None], out, mask=real[None, :])
        tl.store(stats + seat * 2, top, mask=real)
        tl.store(stats + seat * 2 + 1, weight, mask=real)


@triton.jit
def attention_combine(
    partial, stats, gate, bias, positions, y, R,
    A: tl.constexpr, D: tl.constexpr, X: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    """y [R, A * D]: the splits of one head of one row, joined in ascending order; times sigmoid(gate), the last A * D
    of the X columns of a linear with the bias `bias` [X] or None, unless gate is None. Splits behind the position are
    not read. Grid (A, R)."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    count = tl.load(positions + row) // SPLIT + 1
    d = tl.arange(0, D)
    seat = (row * A + head).to(tl.int64) * SPLITS
    top = tl.full((SPLITS_AT_ONCE,), float("-inf"), tl.float32)
    for first in range(0, count, SPLITS_AT_ONCE):
        s = first + tl.arange(0, SPLITS_AT_ONCE)
        top = tl.maximum(top, tl.load(stats + (seat + s) * 2, mask=s < count, other=float("-inf")))
    highest = tl.max(top, 0)
    weight = tl.zeros((SPLITS_AT_ONCE,), tl.float32)
    out = tl.zeros((D,), tl.float32)
    for first in range(0, count, SPLITS_AT_ONCE):
        s = first + tl.arange(0, SPLITS_AT_ONCE)
        fade = tl.exp2(tl.load(stats + (seat + s) * 2, mask=s < count, other=float("-inf")) - highest)
        weight += fade * tl.load(stats + (seat + s) * 2 + 1, mask=s < count, other=0.0)
        part = tl.load(partial + (seat + s)[:, None] * D + d[None, :], mask=(s < count)[:, None], other=0.0)
        out += tl.sum(part * fade[:, None], 0)
    out = out / tl.sum(weight, 0)
    if gate is not None:
        columns = X - A * D + head * D + d
        gates = planes.value(gate, row * X + columns, R * X, d < D, bias, columns, PLANES, y.dtype.element_ty)
        out *= tl.sigmoid(gates)
    tl.store(y + (row * A + head) * D + d, out.to(y.dtype.element_ty))
