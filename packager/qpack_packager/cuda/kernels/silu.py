"""The activation between the two matrix products of an MLP."""

# pyright: basic

import triton
import triton.language as tl

from qpack_packager.cuda.kernels import planes


@triton.jit
def silu_mul(x, bias, y, R, I: tl.constexpr, PLANES: tl.constexpr, BLOCK: tl.constexpr):  # noqa: E741
    """y [R, I] = silu(gate) * up, from x of 2 * I columns gate | up: the value of a linear with the bias `bias` [2 * I]
    or None. Shazeer, "GLU Variants Improve Transformer". Grid (ceil(I / BLOCK), R)."""
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < I
    offsets = row * (2 * I) + columns
    dtype: tl.constexpr = y.dtype.element_ty
    gate = planes.value(x, offsets, R * (2 * I), mask, bias, columns, PLANES, dtype)
    up = planes.value(x, offsets + I, R * (2 * I), mask, bias, columns + I, PLANES, dtype)
    tl.store(y + row * I + columns, (gate * tl.sigmoid(gate) * up).to(dtype), mask=mask)
