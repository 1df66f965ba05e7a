"""Kernels for the tests of the compiler: small ones that are right, and one for each thing that can be wrong."""

# pyright: basic, reportUndefinedVariable=false

import triton
import triton.language as tl

from sample_kernels import helpers


@triton.jit
def add(x, y, z, R, bias, BLOCK: tl.constexpr):
    """z = 2x + y (+ bias), float32."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = helpers.axpy(2.0, tl.load(x + i, mask=i < R), tl.load(y + i, mask=i < R))
    if bias is not None:
        total += tl.load(bias + i, mask=i < R)
    tl.store(z + i, total, mask=i < R)


@triton.jit
def product(x, w, y, K: tl.constexpr, TILE: tl.constexpr):
    """y [TILE, 16] = x [TILE, K] @ w [K, 16], 64 of K a step."""
    m, n, k = tl.arange(0, TILE), tl.arange(0, 16), tl.arange(0, 64)
    total = tl.zeros((TILE, 16), tl.float32)
    for start in range(0, K, 64):
        a = tl.load(x + m[:, None] * K + start + k[None, :])
        b = tl.load(w + (start + k)[:, None] * 16 + n[None, :])
        total = tl.dot(a, b, total)
    tl.store(y + m[:, None] * 16 + n[None, :], total)


@triton.jit
def double(x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i) * 2.0)


@triton.jit
def hoarding(x, y, R, BLOCK: tl.constexpr):
    """Holds 2 * BLOCK numbers over a loop that needs them all at once."""
    i = tl.arange(0, BLOCK)
    one, two = tl.load(x + i), tl.load(x + BLOCK + i)
    for step in range(R):
        one, two = one * tl.max(two) + tl.load(x + step), two * tl.max(one)
    tl.store(y + i, one + two)


@triton.jit
def undefined(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, helpers.wrong(tl.load(x + i)))


@triton.jit
def unassembled(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.inline_asm_elementwise(
        "nonsense.f32 $0, $1;", "=f,f", [tl.load(x + i)], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(y + i, v)


def untouched(x, y, BLOCK):
    """No Triton function."""
