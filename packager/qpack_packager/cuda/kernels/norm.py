"""RMS norm of a row, behind the residual addition where there is one."""

# pyright: basic

import triton
import triton.language as tl

from qpack_packager.cuda.kernels import planes


@triton.jit
def normalize(x, weight, columns, mask, H: tl.constexpr, EPS: tl.constexpr, UNIT: tl.constexpr):  # -> float32 block
    """x / rms(x) * weight, or * (1 + weight) with UNIT; x is a float32 block of H values, zero where mask is false.
    Zhang & Sennrich, "Root Mean Square Layer Normalization"."""
    w = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    if UNIT:
        w += 1.0
    return x * tl.rsqrt(tl.sum(x * x, 0) / H + EPS) * w


@triton.jit
def rms_norm(
    x, delta, bias, weight, y, sum, R,
    H: tl.constexpr, PLANES: tl.constexpr, EPS: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y [R, H] = norm(x) * weight [H], one program a row; BLOCK is H rounded up to a power of two. With delta, a value
    of a linear with the bias `bias`: sum [R, H] = x + delta, rounded, and y = norm(sum). Without: delta, bias and sum
    are None. Grid (R,)."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < H
    offsets = row * H + columns
    total = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    if delta is not None:
        total += planes.value(delta, offsets, R * H, mask, bias, columns, PLANES, y.dtype.element_ty)
        stored = total.to(sum.dtype.element_ty)
        tl.store(sum + offsets, stored, mask=mask)
        total = stored.to(tl.float32)
    normed = normalize(total, weight, columns, mask, H, EPS, UNIT)
    tl.store(y + offsets, normed.to(y.dtype.element_ty), mask=mask)
