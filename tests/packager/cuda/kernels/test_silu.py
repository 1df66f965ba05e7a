"""The SwiGLU kernel against the reference instruction."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_launch import DTYPES, assert_rounded_once, launch, linear_value, nans, normal
from qpack_packager.cuda.kernels.silu import silu_mul
from qpack_runtime.reference import instructions

dtypes = st.sampled_from(sorted(DTYPES)).map(DTYPES.get)


def run(x, bias, planes: int, dtype, block: int = 64):
    *_, rows, width = x.shape
    y = nans((rows, width // 2), dtype)
    grid = (-(-width // 2 // block), rows)
    launch(silu_mul, grid, x, bias, y, rows, I=width // 2, PLANES=planes, BLOCK=block)
    return y


@settings(max_examples=30)
@given(
    rows=st.integers(1, 3), width=st.integers(1, 150), planes=st.integers(0, 4), with_bias=st.booleans(), dtype=dtypes,
    seed=st.integers(0, 99),
)  # fmt: skip
def test_y_is_the_reference_rounded_once(rows, width, planes, with_bias, dtype, seed):
    rng = np.random.default_rng(seed)
    bias = normal(rng, 2 * width, dtype) if planes and with_bias else None
    held, x = linear_value(rng, rows, 2 * width, planes, dtype, bias)
    wanted = nans((rows, width), np.float32)
    instructions.silu_mul(x, wanted)
    assert_rounded_once(run(held, bias, planes, dtype), wanted)


@given(rows=st.integers(2, 4), planes=st.integers(0, 3), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_a_row_alone_gives_the_bits_that_it_gives_between_rows_of_nan(rows, planes, seed):
    rng = np.random.default_rng(seed)
    dtype = DTYPES["float16"]
    held, _ = linear_value(rng, rows, 100, planes, dtype)
    row = seed % rows
    alone = run(held[..., row : row + 1, :].copy(), None, planes, dtype)
    held[..., np.arange(rows) != row, :] = np.nan
    assert run(held, None, planes, dtype)[row].tobytes() == alone[0].tobytes()


def test_far_gates_are_shut_or_wide_open():
    x = np.array([[-1e30, -200, 0, 200, 1e30, 2, 2, 2, 2, 2]], np.float32)
    y = run(x, None, 0, np.float32)
    assert np.array_equal(y, np.array([[0, 0, 0, 400, 2e30]], np.float32))
