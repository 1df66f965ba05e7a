"""Round to nearest: every weight within half a step of its source, and the same bytes wherever it runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_packager.quantize import groups, rtn
from qpack_packager.quantize.rtn import quantize
from random_weights import KINDS, draw_weight


def restored(quantized: groups.Quantized) -> np.ndarray:
    """float64 [N, K]."""
    scales = np.repeat(quantized.scales.astype(np.float64), 128, axis=1)
    return (quantized.codes.astype(np.float64) - 8) * scales


def steps(quantized: groups.Quantized) -> np.ndarray:
    return np.abs(np.repeat(quantized.scales.astype(np.float64), 128, axis=1))


@given(seed=st.integers(0, 10**6), n=st.integers(1, 5), count=st.integers(1, 3), kind=KINDS)
def test_every_weight_is_within_half_a_step_of_its_source(seed: int, n: int, count: int, kind: str):
    weight = draw_weight(seed, n, count, kind)
    quantized = quantize(weight)
    assert quantized.codes.max() <= 15
    error = np.abs(restored(quantized) - weight.astype(np.float64))
    assert (error <= steps(quantized) / 2 * (1 + 1e-6)).all()


@given(seed=st.integers(0, 10**6), kind=KINDS)
def test_no_other_scale_of_the_grid_has_less_squared_error(seed: int, kind: str):
    """The search by brute force, in float64, over the scales that keep every weight within half a step."""
    weight = draw_weight(seed, 2, 1, kind)
    quantized, exact = quantize(weight), weight.astype(np.float64)
    ours = ((restored(quantized) - exact) ** 2).sum(1)
    high, low = exact.max(1), exact.min(1)
    larger, smaller = np.maximum(high, -low), np.minimum(high, -low)
    for factor in rtn.GRID:
        least = np.maximum(larger / 8.5, smaller / 7.5) * factor
        scale = np.where(high >= -low, -1, 1) * groups.round_up(least)
        safe = np.where(scale == 0, 1, scale)[:, None]
        other = ((np.clip(np.rint(exact / safe), -8, 7) * scale[:, None] - exact) ** 2).sum(1)
        assert (ours <= other * (1 + 1e-5)).all()


def test_relative_error_of_gaussian_weights_is_that_of_the_method():
    """0.117 is absmax / 7 and 0.103 the signed maximum / -8 on Gaussian weights in groups of 128 (computed here
    too)."""
    weight = np.random.default_rng(0).standard_normal((256, 1024)).astype(np.float32)
    exact = weight.reshape(-1, 128).astype(np.float64)
    scale = np.abs(exact).max(1, keepdims=True) / 7
    absmax = np.sqrt(((np.rint(exact / scale) * scale - exact) ** 2).sum() / (exact**2).sum())
    assert absmax == pytest.approx(0.117, abs=0.002)
    ours = quantize(weight).relative_rms_error
    exact = np.sqrt(((restored(quantize(weight)) - weight) ** 2).sum() / (weight.astype(np.float64) ** 2).sum())
    assert ours == pytest.approx(exact, rel=1e-5)
    assert ours < 0.101 < absmax


def test_a_group_of_zeros_has_the_scale_zero_whatever_the_signs_of_its_zeros():
    """The larger of 0 and -0 is one or the other, as the processor likes."""
    zeros = np.zeros((2, 256), np.float32)
    zeros[1, ::3] = -0.0
    for weight in (zeros, -zeros):
        made = quantize(weight)
        assert (made.codes == 8).all()
        assert made.scales.tobytes() == bytes(8)
