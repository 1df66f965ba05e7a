"""Called by kernels of the module beside it."""

# pyright: basic, reportUndefinedVariable=false

import triton
import triton.language as tl


@triton.jit
def wrong(x):
    return x + nowhere  # noqa: F821


@triton.jit
def axpy(a, x, y):
    return a * x + y.to(tl.float32)
