"""GPTQ on one weight: the paper's formulas, in the bundle's grid."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qpack_packager.calibration import gptq
from random_weights import KINDS, draw_weight


def correlated(seed: int, tokens: int, k: int) -> torch.Tensor:
    """float64 [tokens, k]: inputs of very different sizes that depend on each other, as those of a model do."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((tokens, 8)) @ rng.standard_normal((8, k)) + 0.3 * rng.standard_normal((tokens, k))
    return torch.from_numpy(mixed * np.exp(rng.standard_normal(k)))


def hessian_of(inputs: torch.Tensor) -> torch.Tensor:
    return inputs.T @ inputs * (2 / len(inputs))


def columns_of(seed: int, k: int, n: int) -> torch.Tensor:
    return torch.from_numpy(draw_weight(seed, n, k // 128, "gauss").astype(np.float32).T)


def optimal_brain_quantization(
    columns: torch.Tensor, scales: torch.Tensor, hessian: torch.Tensor, order: torch.Tensor
) -> torch.Tensor:
    """Section 3.1 of the paper as it stands, float64: column after column, all that are left are corrected by
    -(w - q) / [H^-1]_qq (H^-1)_:,q, and the column is taken out of the inverse by a step of Gaussian elimination."""
    free, inverse, steps = columns.clone(), torch.linalg.inv(hessian), torch.zeros_like(columns)
    for q in order.tolist():
        scale = scales[q // 128]
        steps[q] = torch.clamp(torch.round(free[q] / scale), -8, 7)
        free -= torch.outer(inverse[:, q], (free[q] - steps[q] * scale) / inverse[q, q])
        inverse -= torch.outer(inverse[:, q], inverse[q]) / inverse[q, q]
        inverse[q, q] = 1  # out of the game
    return steps


@pytest.mark.parametrize("k", [128, 384])
def test_columns_are_rounded_as_the_formulas_of_the_paper_say(k: int):
    """The same codes from the Cholesky factor, in blocks, as from the inverse, without."""
    hessian, columns = hessian_of(correlated(1, 1000, k)), columns_of(2, k, 24).double()
    scales = columns.unflatten(0, (-1, 128)).abs().amax(1) / 7
    factored = gptq.factor(hessian.clone())
    damped = hessian + factored.damping * hessian.diagonal().mean() * torch.eye(k, dtype=torch.float64)
    exact = torch.linalg.cholesky(torch.linalg.inv(damped[factored.order][:, factored.order]), upper=True)
    assert torch.allclose(factored.upper.triu(), exact, rtol=1e-8, atol=1e-10 * float(exact.abs().max()))
    factored.upper[:] = exact
    ours = gptq.round_columns(columns, scales, factored).double()
    assert torch.equal(ours, optimal_brain_quantization(columns, scales, damped, factored.order))
    assert not torch.equal(ours, gptq.nearest(columns, scales.repeat_interleave(128, 0)))


def test_the_largest_inputs_come_first():
    factored = gptq.factor(torch.diag(torch.arange(1.0, 193, dtype=torch.float64) % 100))
    assert factored.order[:3].tolist() == [98, 97, 96]
    assert factored.order[191:].tolist() == [99]  # an input that is always 0


def test_with_independent_inputs_of_one_size_it_is_rounding_to_nearest():
    columns = columns_of(3, 256, 40)
    made = gptq.quantize(columns.T, gptq.factor(torch.eye(256, dtype=torch.float64)))
    scales = torch.from_numpy(made.scales.astype(np.float32)).T
    nearest = gptq.nearest(columns, scales.repeat_interleave(128, 0)) + 8
    assert np.array_equal(made.codes, nearest.T.numpy())


@given(seed=st.integers(0, 10**6), kind=KINDS)
def test_no_other_scale_of_the_grid_costs_less(seed: int, kind: str):
    """By brute force, in float64."""
    group = draw_weight(seed, 3, 1, kind).astype(np.float64).T
    costs = np.random.default_rng(seed).exponential(1, 128)
    ours = gptq.least_cost(torch.from_numpy(group).float(), torch.from_numpy(costs).float())
    assert torch.equal(ours, ours.bfloat16().float())

    def cost(scales: np.ndarray) -> np.ndarray:
        steps = np.clip(np.rint(group / np.where(scales == 0, 1, scales)), -8, 7)
        return costs @ (steps * scales - group) ** 2

    high, low = group.max(0).astype(np.float32), group.min(0).astype(np.float32)  # the grid is computed in float32
    larger, smaller = np.maximum(high, -low), np.minimum(high, -low)
    whole = np.where(high >= -low, np.float32(-1), np.float32(1)) * np.maximum(larger / 8.5, smaller / 7.5)
    for part in gptq.GRID:
        other = (torch.from_numpy(whole) * part).bfloat16().double().numpy()
        assert (cost(ours.double().numpy()) <= cost(other) * (1 + 1e-4) + 1e-70).all()


def test_a_column_costs_what_the_later_ones_cannot_make_good():
    """The least of (w - q)^T H (w - q) where one entry is 1, those before it are 0 and those behind it are free."""
    hessian = hessian_of(correlated(5, 400, 128))
    factored = gptq.factor(hessian.clone())
    damped = hessian + factored.damping * hessian.diagonal().mean() * torch.eye(128, dtype=torch.float64)
    for place in (0, 50, 127):
        column, later = factored.order[place], factored.order[place + 1 :]
        cost = damped[column, column]
        if len(later):
            cost = cost - damped[column, later] @ torch.linalg.solve(damped[later][:, later], damped[later, column])
        assert float(factored.costs[column]) == pytest.approx(float(cost), rel=1e-3)


def test_weights_of_inputs_that_are_always_zero_are_rounded_to_nearest_not_lost():
    inputs = correlated(6, 500, 256)
    inputs[:, 7::16] = 0
    columns = columns_of(7, 256, 16)
    made = gptq.quantize(columns.T, gptq.factor(hessian_of(inputs)))
    scales = torch.from_numpy(made.scales.astype(np.float32)).T.repeat_interleave(128, 0)
    assert np.array_equal(made.codes.T[7::16], (gptq.nearest(columns, scales) + 8)[7::16].numpy())
    assert (made.codes.T[7::16] != 8).any()


def test_without_any_input_everything_is_rounded_to_nearest():
    columns = columns_of(8, 128, 16)
    made = gptq.quantize(columns.T, gptq.factor(torch.zeros(128, 128, dtype=torch.float64)))
    assert made.relative_rms_error < 0.11


def test_lines_end_in_zeros_up_to_whole_groups():
    weight = columns_of(9, 256, 16).T[:, :200].contiguous()
    made = gptq.quantize(weight, gptq.factor(hessian_of(correlated(9, 500, 200))))
    assert made.codes.shape == (16, 256)
    assert made.scales.shape == (16, 2)
    assert (made.codes[:, 200:] == 8).all()


def test_a_line_of_zeros_has_scales_of_zero():
    made = gptq.quantize(-torch.zeros(2, 128), gptq.factor(hessian_of(correlated(10, 500, 128))))
    assert (made.codes == 8).all()
    assert made.scales.tobytes() == bytes(4)


def hessian_with(below: float) -> torch.Tensor:
    """float64 [128, 128] of mean diagonal 1, whose least eigenvalue is -`below`; symmetric to the last bit."""
    turned, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((128, 128)))
    values = np.concatenate([[-below], np.full(127, (128 + below) / 127)])
    half = torch.from_numpy((turned * values) @ turned.T).tril()
    return half + half.tril(-1).T


@pytest.mark.parametrize(("below", "damping"), [(0.0, 0.01), (0.05, 0.1), (0.5, 1.0)])
def test_damping_grows_until_the_hessian_can_be_factored(below: float, damping: float):
    """Failed attempts leave no trace."""
    made, at_once = gptq.factor(hessian_with(below)), gptq.factor(hessian_with(below), damping)
    assert made.damping == at_once.damping == damping
    assert torch.equal(made.upper, at_once.upper)


@pytest.mark.parametrize(("tokens", "damping"), [(100_000, 0.01), (1280, 0.1), (50, 1.0)])
def test_a_short_text_is_trusted_less(tokens: int, damping: float):
    assert gptq.damping_for(128, tokens) == damping


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_hessian_that_is_not_finite_is_an_error(value: float):
    hessian = torch.eye(128, dtype=torch.float64)
    hessian[3, 4] = value
    with pytest.raises(gptq.NotDefiniteError, match="NaN or infinity"):
        gptq.factor(hessian)


def test_a_hessian_that_no_damping_mends_is_an_error():
    hessian = torch.eye(128, dtype=torch.float64)
    hessian[0, 1] = hessian[1, 0] = 1e3
    kept = hessian.clone()
    with pytest.raises(gptq.NotDefiniteError, match="even with 1 of its mean diagonal added"):
        gptq.factor(hessian)
    assert torch.equal(hessian, kept)  # by which rounding to nearest is judged
