"""A weight rounded by its inputs changes its outputs no more than one that is rounded to nearest."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qpack_packager.calibration import rounding
from qpack_packager.calibration.gptq import factor
from qpack_packager.calibration.rounding import restored, round_weight
from qpack_packager.quantize import rtn
from random_weights import KINDS, draw_weight


def relative_change(inputs: np.ndarray, weight: np.ndarray, made: np.ndarray) -> np.ndarray:
    """Of each output line, float64 [N]."""
    whole = np.sqrt(((inputs @ weight.T.astype(np.float64)) ** 2).sum(0))
    change = np.sqrt(((inputs @ (weight.astype(np.float64) - made).T) ** 2).sum(0))
    return change / np.where(whole == 0, 1, whole)


@given(seed=st.integers(0, 10**6), kind=KINDS, tokens=st.sampled_from([5, 60, 300]), width=st.sampled_from([128, 200]))
def test_no_line_is_worse_than_rounded_to_nearest(seed: int, kind: str, tokens: int, width: int):
    rng = np.random.default_rng(seed)
    weight = draw_weight(seed, 6, 2, kind).astype(np.float32)[:, :width]
    inputs = rng.standard_normal((tokens, 4)) @ rng.standard_normal((4, width)) + rng.standard_normal((tokens, width))
    hessian = torch.from_numpy(inputs.T @ inputs / tokens)
    made = round_weight(np.ascontiguousarray(weight), factor(hessian))
    plain = restored(rtn.quantize(np.pad(weight, ((0, 0), (0, -width % 128)))), width)
    ours = relative_change(inputs, weight, restored(made.quantized, width))
    assert (ours <= relative_change(inputs, weight, plain) + 1e-6).all()


def test_what_the_outputs_lose_is_measured_and_less_than_by_rounding_to_nearest():
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((2000, 16)) @ rng.standard_normal((16, 256)) + 0.5 * rng.standard_normal((2000, 256))
    weight, hessian = draw_weight(1, 64, 2, "gauss").astype(np.float32), torch.from_numpy(inputs.T @ inputs)
    made = round_weight(weight, factor(hessian))
    plain = rtn.quantize(weight)
    for quantized, error in ((made.quantized, made.output_error), (plain, made.rtn_output_error)):
        change = np.linalg.norm(inputs @ (weight - restored(quantized, 256)).T) / np.linalg.norm(inputs @ weight.T)
        assert error == pytest.approx(change, rel=1e-6)
    assert made.output_error is not None
    assert made.rtn_output_error is not None
    assert made.output_error < 0.6 * made.rtn_output_error
    squares = ((weight - restored(made.quantized, 256)).astype(np.float64) ** 2).sum(1)
    assert np.allclose(made.quantized.squared_error, squares, rtol=1e-5)


def test_the_lines_may_be_cut_anywhere(monkeypatch: pytest.MonkeyPatch):
    inputs = np.random.default_rng(2).standard_normal((500, 128))
    weight, hessian = draw_weight(3, 50, 1, "gauss").astype(np.float32), torch.from_numpy(inputs.T @ inputs)
    factored = factor(hessian)
    whole = round_weight(weight, factored).quantized
    monkeypatch.setattr(rounding, "LINES", 16)
    monkeypatch.setattr(rounding, "COSTED", 7)
    parts = round_weight(weight, factored).quantized
    assert np.mean(whole.codes != parts.codes) < 0.01  # a product's sum depends on its shape
    assert whole.scales.shape == parts.scales.shape
    assert np.allclose(whole.squared_weight, parts.squared_weight)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_without_a_factor_a_weight_is_rounded_to_nearest(value: float):
    weight = draw_weight(4, 8, 1, "gauss").astype(np.float32)
    plain = rtn.quantize(weight)
    made = round_weight(weight, torch.full((128, 128), value, dtype=torch.float64))
    assert made.quantized.codes.tobytes() == plain.codes.tobytes()
    assert made.quantized.scales.tobytes() == plain.scales.tobytes()
    assert made.output_error is made.rtn_output_error is None
