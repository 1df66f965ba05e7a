"""int8: nothing clipped, every weight within half a step of its source, and the same bytes wherever it runs."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qpack_packager.quantize.int8 import quantize
from qpack_runtime.reference.int8 import dequantize
from random_weights import KINDS, draw_weight

seeds = st.integers(0, 10**6)


def wide(scales: np.ndarray) -> np.ndarray:
    """float64 [N, K]: the scale of every weight."""
    return np.repeat(scales.astype(np.float64), 128, axis=1)


@given(seed=seeds, n=st.integers(1, 5), count=st.integers(1, 3), kind=KINDS)
def test_every_weight_is_within_half_a_step_of_its_source(seed: int, n: int, count: int, kind: str):
    weight = draw_weight(seed, n, count, kind).astype(np.float64)
    made = quantize(weight)
    assert (made.codes.dtype, made.codes.shape) == (np.int8, weight.shape)
    assert (made.scales.dtype, made.scales.shape) == (ml_dtypes.bfloat16, (n, count))
    error = np.abs(made.codes.astype(np.float64) * wide(made.scales) - weight)
    assert (error <= wide(made.scales) / 2 * (1 + 1e-6)).all()


@given(seed=seeds, kind=KINDS)
def test_the_scale_is_the_least_bfloat16_that_clips_nothing_unless_one_above_loses_nothing(seed: int, kind: str):
    weight = draw_weight(seed, 3, 2, kind).astype(np.float64)
    made = quantize(weight)
    scales = made.scales
    most = np.abs(weight).reshape(3, 2, 128).max(-1)
    assert (most <= 127 * scales.astype(np.float64)).all()
    below = (scales.view(np.uint16) - np.uint16(1)).view(ml_dtypes.bfloat16).astype(np.float64)
    exact = (made.codes * wide(scales) == weight).reshape(3, 2, 128).all(-1)
    least = 127 * below < most
    assert (least | exact)[most > 0].all()
    assert (scales[most == 0] == 0).all()


@given(seed=seeds, n=st.integers(1, 5), count=st.integers(1, 3), kind=KINDS)
def test_what_codes_stand_for_is_rounded_to_the_same_codes(seed: int, n: int, count: int, kind: str):
    """Also where the largest code is 126, and the least scale that clips nothing is a smaller one."""
    once = quantize(draw_weight(seed, n, count, kind))
    assume(np.count_nonzero(once.codes.reshape(n, count, 128), axis=-1).min() > 2)  # few weights have many spellings
    numbers = dequantize(once.codes, once.scales)
    assume(np.isfinite(numbers).all())
    again = quantize(numbers)
    assert np.array_equal(again.codes, once.codes)
    assert again.scales.tobytes() == once.scales.tobytes()
    assert not again.squared_error.any()


@given(seed=seeds, kind=KINDS)
def test_codes_are_symmetric_so_that_a_weight_turned_round_has_its_codes_turned_round(seed: int, kind: str):
    weight = draw_weight(seed, 2, 1, kind)
    one, other = quantize(weight), quantize(-weight)
    assert one.codes.min() >= -127
    assert np.array_equal(one.codes, -other.codes)
    assert one.scales.tobytes() == other.scales.tobytes()


def test_relative_error_of_gaussian_weights_is_that_of_the_method():
    """A step over the root of 12, the step being the largest of 128 magnitudes over 127."""
    weight = np.random.default_rng(0).standard_normal((256, 1024)).astype(np.float32)
    step = np.abs(weight.reshape(-1, 128).astype(np.float64)).max(1) / 127
    ideal = np.sqrt((step**2).mean() / 12) / weight.std()
    made = quantize(weight)
    exact = np.sqrt(((made.codes * wide(made.scales) - weight) ** 2).sum() / (weight.astype(np.float64) ** 2).sum())
    assert made.relative_rms_error == pytest.approx(exact, rel=1e-5)
    assert ideal < made.relative_rms_error < 1.01 * ideal < 0.0066  # scales of 8 bits are up to 1/128 too large


@given(n=st.integers(1, 5), count=st.integers(1, 3), data=st.data())
def test_dequantized_is_code_times_the_scale_of_its_group(n: int, count: int, data: st.DataObject):
    codes = data.draw(arrays.arrays(np.int8, (n, 128 * count), elements=st.integers(-127, 127)))
    scales = np.random.default_rng(n).standard_normal((n, count)).astype(ml_dtypes.bfloat16)
    numbers = dequantize(codes, scales)
    assert numbers.dtype == np.float32
    for line in range(n):
        for k in range(128 * count):
            assert numbers[line, k] == np.float32(codes[line, k]) * np.float32(scales[line, k // 128])
    assert np.array_equal(dequantize(codes[-1], scales[-1]), numbers[-1])
