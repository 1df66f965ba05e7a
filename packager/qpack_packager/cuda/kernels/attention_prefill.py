"""Attention of prompt rows: TILE_M rows at a time, over the keys of their slot from position 0 on.

Dao, "FlashAttention-2". A row meets the same blocks of keys in the same order wherever it stands in its tile and
however the prompt was cut; the blocks behind its own position that its neighbours need add exactly nothing to it.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attention_prefill(
    q, k, v, slots, positions, gate, y, R,
    A: tl.constexpr, G: tl.constexpr, D: tl.constexpr, CONTEXT: tl.constexpr, X: tl.constexpr, SCRATCH: tl.constexpr,
    TILE_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y [R, A * D] from q [R, A, D] and k, v [lines, G, D], line = slot * CONTEXT + position; times sigmoid(gate), the
    last A * D columns of gate [R, X], unless it is None. The live rows come first and belong to one slot; a tile of
    padding alone is left as it is. Grid (A, ceil(R / TILE_M))."""
    head = tl.program_id(0)
    first_row = tl.program_id(1) * TILE_M
    if tl.load(slots + first_row) != SCRATCH:
        slot = tl.load(slots)
        rows = first_row + tl.arange(0, TILE_M)
        inside = rows < R
        position = tl.load(positions + rows, mask=inside, other=0)
        end = tl.max(position, 0) + 1
        d = tl.arange(0, D)
        group = head // (A // G)
        query = tl.load(q + (rows * A + head)[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        lines = slot.to(tl.int64) * CONTEXT * (G * D) + group * D
        top = tl.full((TILE_M,), float("-inf"), tl.float32)
        weight = tl.zeros((TILE_M,), tl.float32)
        out = tl.zeros((TILE_M, D), tl.float32)
        for first in range(0, end, BLOCK):
            at = first + tl.arange(0, BLOCK)
            written = at < end  # what lies behind may be NaN and must not even be multiplied by 0
            key = tl.load(k + lines + at[None, :] * (G * D) + d[:, None], mask=written[None, :], other=0.0)
            value = tl.load(v + lines + at[:, None] * (G * D) + d[None, :], mask=written[:, None], other=0.0)
            scores = tl.dot(query, key, input_precision="ieee") * (D**-0.5 * LOG2_E)
            scores = tl.where(at[None, :] <= position[:, None], scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))  # finite from the first block on, since all see position 0
            weights = tl.exp2(scores - higher[:, None])
            fade = tl.exp2(top - higher)
            weight = weight * fade + tl.sum(weights, 1)
            summed = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
            out = out * fade[:, None] + summed
            top = higher
        out = out / weight[:, None]
        if gate is not None:
            columns = rows[:, None] * X + X - A * D + head * D + d[None, :]
            out *= tl.sigmoid(tl.load(gate + columns, mask=inside[:, None], other=0.0).to(tl.float32))
        tl.store(y + (rows * A + head)[:, None] * D + d[None, :], out.to(y.dtype.element_ty), mask=inside[:, None])
