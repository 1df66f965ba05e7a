"""Queries and keys: normed, rotated, and on their way into the cache together with the values."""

# pyright: basic

import triton
import triton.language as tl

from qpack_packager.cuda.kernels import planes


@triton.jit
def rope_kv_write(
    x, bias, rope, q_norm, k_norm, slots, positions, k, v, q, R,
    X: tl.constexpr, A: tl.constexpr, G: tl.constexpr, D: tl.constexpr, F: tl.constexpr, CONTEXT: tl.constexpr,
    SCRATCH: tl.constexpr, PLANES: tl.constexpr, EPS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """One head of one row of x, the value of a linear with the bias `bias` [X] or None, whose columns begin with
    q [A, D] | k [G, D] | v [G, D]. Queries and keys are normed per head, unless q_norm and k_norm [D] are None, and
    rotated by rope [L, 2, F] (cosines, sines; 2 * F <= D). Queries go to q [R, A, D], keys and values to line
    slot * CONTEXT + position of k and v [lines, G, D]; those of padding rows nowhere. D is a power of two.
    Grid (A + 2 * G, R)."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    slot = tl.load(slots + row)
    position = tl.load(positions + row)
    d = tl.arange(0, D)
    values = head_of(x, bias, row, head, d, R, X, D, PLANES, q.dtype.element_ty)
    if head < A + G:
        rotated = d < 2 * F
        pair = tl.where(d < F, d + F, d - F)  # the column that d is rotated with, if it is
        others = head_of(x, bias, row, head, pair, R, X, D, PLANES, q.dtype.element_ty)
        if q_norm is not None:
            scale = tl.rsqrt(tl.sum(values * values, 0) / D + EPS)
            values *= scale * norm_weight(q_norm, k_norm, head < A, d, UNIT)
            others *= scale * norm_weight(q_norm, k_norm, head < A, pair, UNIT)
        angle = rope + position * (2 * F) + tl.where(d < F, d, d - F)
        cosine = tl.load(angle, mask=rotated, other=1.0)
        sine = tl.load(angle + F, mask=rotated, other=0.0)
        turned = values * cosine + others * tl.where(d < F, -sine, sine)
        values = tl.where(rotated, turned, values)
    if head < A:
        tl.store(q + (row * A + head) * D + d, values.to(q.dtype.element_ty))
    elif slot != SCRATCH:
        line = (slot.to(tl.int64) * CONTEXT + position) * (G * D) + d
        if head < A + G:
            tl.store(k + line + (head - A) * D, values.to(k.dtype.element_ty))
        else:
            tl.store(v + line + (head - A - G) * D, values.to(v.dtype.element_ty))


@triton.jit
def head_of(
    x, bias, row, head, d, R, X: tl.constexpr, D: tl.constexpr, PLANES: tl.constexpr, DTYPE: tl.constexpr
):  # -> float32 [D]
    columns = head * D + d
    return planes.value(x, row * X + columns, R * X, d < D, bias, columns, PLANES, DTYPE)


@triton.jit
def norm_weight(q_norm, k_norm, is_query, d, UNIT: tl.constexpr):  # -> float32 [D]
    weight = tl.load(q_norm + d).to(tl.float32) if is_query else tl.load(k_norm + d).to(tl.float32)
    if UNIT:
        weight += 1.0
    return weight
