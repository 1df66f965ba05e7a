# pyright: basic, reportGeneralTypeIssues=false
"""The output of an int4 linear as its reader sees it: split-K leaves float32 planes, which are added here."""

import triton
import triton.language as tl


@triton.jit
def value(
    x, offsets, stride, mask, bias, columns, PLANES: tl.constexpr, DTYPE: tl.constexpr
):  # -> float32 block of the shape of `offsets`
    """Elements `offsets` of [R, N] as if they had been stored in DTYPE. With PLANES = 0, x holds them so. Otherwise x
    is float32 [PLANES, R, N] with `stride` = R * N: planes are added in ascending order, then bias[columns] unless bias
    is None, then the sum is rounded."""
    if PLANES == 0:
        return tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    else:
        total = tl.load(x + offsets, mask=mask, other=0.0)
        for plane in tl.static_range(1, PLANES):
            total += tl.load(x + plane * stride + offsets, mask=mask, other=0.0)
        if bias is not None:
            total += tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
        return total.to(DTYPE).to(tl.float32)
