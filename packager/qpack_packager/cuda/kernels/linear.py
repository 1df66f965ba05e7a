# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
"""y = x @ weight^T for weights that are not quantized: heads and small projections. For int4 see linear_int4.py."""

import triton
import triton.language as tl

STAGES = tl.constexpr(3)  # blocks of K in flight: two arrive while one is multiplied


@triton.jit
def linear(
    x, weight, bias, y, R, K: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr, BLOCK_K: tl.constexpr,
    MMA: tl.constexpr,
):  # fmt: skip
    """TILE columns and 8 rows of y = x @ weight^T (+ bias). Grid (ceil(N / TILE), ceil(R / 8)).

    x [R, K], weight [N, K], bias [N] or None, y [R, N], each of any float dtype; sums are float32. The weights are the
    left operand, so that a tensor core multiplies 16 of their rows with only 8 of x. Tensor cores need x and weight in
    one 16-bit dtype and MMA, false for targets before sm_80; K then advances by BLOCK_K. Otherwise both operands are
    widened to float32 and K advances by 16.
    """
    TENSOR: tl.constexpr = MMA and x.dtype.element_ty == weight.dtype.element_ty and x.dtype.element_ty != tl.float32
    STEP: tl.constexpr = BLOCK_K if TENSOR else 16
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row = tl.program_id(1) * 8 + tl.arange(0, 8)
    k = tl.arange(0, STEP)
    # The last of a short tile's columns and rows stand for the missing ones, which are not stored.
    weight_at = weight + tl.minimum(column, N - 1).to(tl.int64)[:, None] * K + k[None, :]
    x_at = x + tl.minimum(row, R - 1)[None, :] * K + k[:, None]
    total = tl.zeros((TILE, 8), tl.float32)
    for first in tl.range(0, K, STEP, num_stages=STAGES if TENSOR else 1):
        if K % STEP:
            inside = k < K - first
            a = tl.load(weight_at + first, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
            b = tl.load(x_at + first, mask=inside[:, None], other=0.0)
        else:
            a = tl.load(weight_at + first, eviction_policy="evict_first")
            b = tl.load(x_at + first)
        if TENSOR:
            total = tl.dot(a, b, total)
        else:
            total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    mask = (row < R)[None, :]
    if N % TILE:
        mask = mask & (column < N)[:, None]
    if bias is not None:
        total += tl.load(bias + tl.minimum(column, N - 1)).to(tl.float32)[:, None]
    tl.store(y + row.to(tl.int64)[None, :] * N + column[:, None], total.to(y.dtype.element_ty), mask=mask)
