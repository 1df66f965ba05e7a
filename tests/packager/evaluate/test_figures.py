"""Figures follow from the tokens as their definitions say, and their errors are those that resampling shows."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qpack_packager.evaluate.figures import EDGES, LARGEST, figures, histogram, perplexity
from qpack_packager.evaluate.measure import Tokens

RNG = np.random.default_rng(0)


def dependent(windows: int, rows: int, spread: float) -> np.ndarray:
    """Log-likelihoods whose windows differ by more than their tokens would."""
    return -np.abs(RNG.normal(2, 0.5, (windows, rows)) + RNG.normal(0, spread, (windows, 1)))


def tokens(log_likelihood: np.ndarray, kl: np.ndarray | None = None) -> Tokens:
    kl = np.full_like(log_likelihood, 0.01) if kl is None else kl
    return Tokens(log_likelihood, kl, np.ones_like(log_likelihood))


def test_perplexity_is_the_inverse_geometric_mean_of_probabilities():
    probabilities = RNG.uniform(0.01, 0.99, (3, 4))
    value, _ = perplexity(np.log(probabilities))
    assert value == pytest.approx(1 / np.prod(probabilities) ** (1 / 12), rel=1e-12)
    assert perplexity(np.full((2, 5), -math.log(512)))[0] == pytest.approx(512)


def bootstrap(*values: np.ndarray) -> float:
    """Standard deviation of exp(-mean) of the sum of `values` over windows drawn with replacement."""
    drawn = RNG.integers(0, len(values[0]), (4000, len(values[0])))
    return float(np.exp(-sum(one.mean(-1)[drawn].mean(-1) for one in values)).std())


def test_its_error_is_that_of_drawing_other_windows():
    likelihood = dependent(60, 40, 0.6)
    value, error = perplexity(likelihood)
    assert error == pytest.approx(bootstrap(likelihood), rel=0.1)
    assert error is not None
    independent = likelihood.std() / math.sqrt(likelihood.size) * value
    assert error > 2 * independent  # what tokens taken for independent would promise


def test_the_ratio_is_that_of_the_perplexities_and_its_error_that_of_pairs():
    theirs = dependent(60, 40, 0.6)
    ours = theirs + RNG.normal(-0.02, 0.01, theirs.shape) + RNG.normal(0, 0.01, (60, 1))
    found = figures(tokens(ours), theirs)
    assert found["ppl_ratio"] == pytest.approx(perplexity(ours)[0] / perplexity(theirs)[0], rel=1e-12)
    assert found["ppl_ratio_stderr"] == pytest.approx(bootstrap(ours, -theirs), rel=0.1)
    assert found["ppl_ratio_stderr"] is not None
    assert found["perplexity_stderr"] is not None
    assert found["ppl_ratio_stderr"] < found["perplexity_stderr"] / 100


def test_divergence_is_summed_up_by_mean_error_percentile_and_largest():
    kl = RNG.exponential(0.02, (50, 30))
    found = figures(tokens(dependent(50, 30, 0.1), kl), dependent(50, 30, 0.1))
    assert found["kl_mean"] == pytest.approx(kl.sum() / kl.size)
    assert found["kl_stderr"] == pytest.approx(np.std(kl.mean(1), ddof=1) / 50**0.5)
    assert found["kl_p99"] is not None
    assert np.mean(kl <= found["kl_p99"]) == pytest.approx(0.99, abs=1 / kl.size)
    assert found["kl_max"] == max(kl.ravel())


def test_one_window_has_no_error():
    found = figures(tokens(dependent(1, 30, 0.1)), dependent(1, 30, 0.1))
    assert found["perplexity"] is not None
    assert found["perplexity_stderr"] is found["ppl_ratio_stderr"] is found["kl_stderr"] is None


def test_without_a_reference_nothing_is_compared():
    found = figures(tokens(dependent(3, 30, 0.1)), None)
    assert found["perplexity"] is not None
    assert found["ppl_ratio"] is found["kl_mean"] is found["top1_agreement"] is found["kl_histogram"] is None


def test_what_is_not_finite_is_a_place_and_never_a_number():
    likelihood = dependent(30, 6, 0.1)
    for window in range(2, 30):
        likelihood[window, 4:] = np.nan
    likelihood[2, 1:] = np.nan
    found = figures(tokens(likelihood), dependent(30, 6, 0.1))
    assert found["nonfinite_tokens"] == 27 * 2 + 5
    assert found["nonfinite"][:2] == [{"window": 2, "position": 1}, {"window": 3, "position": 4}]
    assert len(found["nonfinite"]) == 20
    numbers = {key: value for key, value in found.items() if not key.startswith("nonfinite")}
    assert set(numbers.values()) == {None}


@given(arrays.arrays(np.float64, (3, 4), elements=st.floats(0, 1e40)), st.booleans())
def test_figures_are_json_whatever_was_measured(values: np.ndarray, alone: bool):
    found = figures(tokens(-values, values), None if alone else np.zeros_like(values))
    json.dumps(found, allow_nan=False)
    assert found["perplexity"] is not None
    assert found["perplexity"] <= LARGEST * (1 + 1e-9)


@given(arrays.arrays(np.float64, (20,), elements=st.floats(1e-9, 100) | st.sampled_from(EDGES)))
def test_the_histogram_is_numpys(kl: np.ndarray):
    found = histogram(kl)
    assert found["edges"] == list(EDGES)
    wanted, _ = np.histogram(kl, [0, *EDGES, 1e9])
    assert found["tokens"] == wanted.tolist()
