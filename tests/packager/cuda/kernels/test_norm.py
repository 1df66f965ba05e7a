"""The RMS norm kernel against the reference instruction."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_launch import DTYPES, assert_rounded_once, launch, linear_value, nans, normal
from qpack_packager.cuda.kernels.norm import rms_norm
from qpack_runtime.reference import instructions

EPS = 1e-6
dtypes = st.sampled_from(sorted(DTYPES)).map(DTYPES.get)


def run(x, delta, bias, weight, planes: int, unit: bool):
    """(y, sum), sum None without delta."""
    rows, width = x.shape
    y, total = nans(x.shape, x.dtype), None if delta is None else nans(x.shape, x.dtype)
    block = 1 << (width - 1).bit_length()
    launch(
        rms_norm, (rows,), x, delta, bias, weight, y, total, rows, H=width, PLANES=planes, EPS=EPS, UNIT=unit,
        BLOCK=block,
    )  # fmt: skip
    return y, total


@settings(max_examples=40)
@given(
    rows=st.integers(1, 4), width=st.integers(1, 300), planes=st.integers(0, 4), with_delta=st.booleans(),
    with_bias=st.booleans(), unit=st.booleans(), dtype=dtypes, weight_dtype=dtypes, seed=st.integers(0, 99),
)  # fmt: skip
def test_sum_is_the_reference_to_the_bit_and_y_its_norm_rounded_once(
    rows, width, planes, with_delta, with_bias, unit, dtype, weight_dtype, seed
):
    rng = np.random.default_rng(seed)
    x, weight = normal(rng, (rows, width), dtype), normal(rng, width, weight_dtype)
    bias = normal(rng, width, weight_dtype) if with_delta and planes and with_bias else None
    held, delta = linear_value(rng, rows, width, planes, dtype, bias) if with_delta else (None, None)
    y, total = run(x, held, bias, weight, planes, unit)
    wanted, wanted_sum = nans(x.shape, np.float32), None if delta is None else nans(x.shape, dtype)
    instructions.rms_norm(x, weight, wanted, eps=EPS, unit_offset=unit, delta=delta, sum=wanted_sum)
    assert_rounded_once(y, wanted)
    if total is not None and wanted_sum is not None:
        assert total.tobytes() == wanted_sum.tobytes()


@given(rows=st.integers(2, 5), planes=st.integers(0, 3), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_a_row_alone_gives_the_bits_that_it_gives_between_rows_of_nan(rows, planes, seed):
    rng = np.random.default_rng(seed)
    dtype = DTYPES["bfloat16"]
    x, weight = normal(rng, (rows, 96), dtype), normal(rng, 96, dtype)
    held, _ = linear_value(rng, rows, 96, planes, dtype)
    row = seed % rows
    alone = run(x[row : row + 1], held[..., row : row + 1, :].copy(), None, weight, planes, False)
    others = np.arange(rows) != row
    x[others] = held[..., others, :] = np.nan
    for array, single in zip(run(x, held, None, weight, planes, False), alone, strict=True):
        assert array is not None
        assert single is not None
        assert array[row].tobytes() == single[0].tobytes()


def test_a_row_of_zeros_stays_zero():
    x = np.zeros((1, 5), DTYPES["bfloat16"])
    y, _ = run(x, None, None, np.ones(5, np.float32), 0, True)
    assert y.tobytes() == x.tobytes()


def test_values_worked_out_by_hand():
    """rms of 3, 4, 0, 0 is 2.5; with the unit offset a weight of 0.5 counts 1.5."""
    x, weight = np.array([[3, 4, 0, 0]], np.float32), np.array([0.5, 1, 1, 1], np.float32)
    y, _ = run(x, None, None, weight, 0, True)
    assert np.allclose(y, [[1.8, 3.2, 0, 0]], rtol=1e-6)
