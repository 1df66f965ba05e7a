# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
"""y = x @ weight^T for heads and for layers that stay dense or are int8. For int4 see linear_int4.py."""

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


@triton.jit
def linear_int8(
    x, q, scale, bias, y, R, K: tl.constexpr, N: tl.constexpr, TILE_M: tl.constexpr, TILE: tl.constexpr,
    MMA: tl.constexpr,
):  # fmt: skip
    """TILE columns and TILE_M rows of y = x @ (q * scale)^T (+ bias). Grid (ceil(N / TILE), ceil(R / TILE_M)).

    x [R, K]; q int8 [N, K'], scale [N, K' / 128] with K' = K rounded up to 128; bias [N] or None, y [R, N]. The codes
    are exact in every dtype of x; a group's sum is multiplied with its scale in float32. Operands and MMA as in
    `linear`.
    """
    DTYPE: tl.constexpr = x.dtype.element_ty
    TENSOR: tl.constexpr = MMA and tl.float32 != DTYPE
    GROUPS: tl.constexpr = (K + 127) // 128
    STEP: tl.constexpr = 128 if TENSOR else 16
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row = tl.program_id(1) * TILE_M + tl.arange(0, TILE_M)
    k = tl.arange(0, STEP)
    line = tl.minimum(column, N - 1).to(tl.int64)
    q_at = q + line[:, None] * (128 * GROUPS) + k[None, :]
    x_at = x + tl.minimum(row, R - 1)[None, :] * K + k[:, None]
    total = tl.zeros((TILE, TILE_M), tl.float32)
    for group in tl.range(0, GROUPS, num_stages=STAGES if TENSOR else 1):
        if TENSOR:
            codes = tl.load(q_at + group * 128, eviction_policy="evict_first")
            part = tl.dot(codes.to(DTYPE), _columns_of(x_at, group * 128, k, K))
        else:
            part = tl.zeros((TILE, TILE_M), tl.float32)
            for step in tl.range(8, num_stages=1):
                first = group * 128 + step * 16
                codes = tl.load(q_at + first, eviction_policy="evict_first").to(tl.float32)
                part = tl.dot(codes, _columns_of(x_at, first, k, K).to(tl.float32), part, input_precision="ieee")
        total += part * tl.load(scale + line * GROUPS + group).to(tl.float32)[:, None]
    mask = (row < R)[None, :]
    if N % TILE:
        mask = mask & (column < N)[:, None]
    if bias is not None:
        total += tl.load(bias + line).to(tl.float32)[:, None]
    tl.store(y + row.to(tl.int64)[None, :] * N + column[:, None], total.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _columns_of(x_at, first, k, K: tl.constexpr):
    """Columns first + k of x. Behind its K columns lie other rows, or NaN: their codes are 0, but 0 * NaN is NaN."""
    if K % 128 == 0:
        return tl.load(x_at + first)
    else:
        return tl.load(x_at + first, mask=(k < K - first)[:, None], other=0.0)
