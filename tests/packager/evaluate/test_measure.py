"""Log-likelihoods, divergences and agreement are torch's, row by row, however the rows come."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qpack_packager.evaluate.measure import Reference, Tokens, divergence, log_softmax, measure
from qpack_packager.evaluate.runner import LogitStream
from qpack_schemas.errors import InputError

VOCAB = 50


class Recorded:
    """A stream of logits float32 [windows, rows, VOCAB] that are there already; steps must be asked for in order."""

    def __init__(self, logits: np.ndarray, batch: int):
        self.header = {"batch": batch, "vocab": VOCAB, "windows": len(logits), "rows": logits.shape[1]}
        self._logits = logits
        self._steps = self._order()

    def _order(self) -> Iterator[tuple[int, int, int]]:
        windows, rows, _ = self._logits.shape
        for first in range(0, windows, self.header["batch"]):
            for position in range(rows):
                yield first, min(self.header["batch"], windows - first), position

    def read(self, first: int, windows: int, position: int) -> np.ndarray:
        assert next(self._steps) == (first, windows, position)
        return self._logits[first : first + windows, position]


def recorded(logits: Mapping[str, np.ndarray], batch: int) -> dict[str, LogitStream]:
    return {name: cast(LogitStream, Recorded(one, batch)) for name, one in logits.items()}


def reference_of(logits: np.ndarray) -> Reference:
    """`logits` [windows, length, ids]"""
    return lambda windows: iter(logits)


def some(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, shape).astype(np.float32)


def as_torch(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float64))


@pytest.mark.parametrize("batch", [1, 2, 5, 8])
def test_each_token_is_measured_as_torch_does(batch: int):
    windows = np.random.default_rng(0).integers(0, VOCAB, (5, 7)).astype(np.int32)
    theirs, fast, exact = some(1, (5, 7, VOCAB)), some(2, (5, 6, VOCAB)), some(3, (5, 6, VOCAB))
    batch = min(batch, len(windows))
    found, likelihood = measure(recorded({"fast": fast, "exact": exact}, batch), windows, reference_of(theirs))
    following = torch.from_numpy(windows[:, 1:].astype(np.int64)).ravel()

    def cross_entropy(logits: np.ndarray) -> np.ndarray:
        flat = as_torch(logits).reshape(-1, VOCAB)
        return torch.nn.functional.cross_entropy(flat, following, reduction="none").numpy().reshape(5, 6)

    assert likelihood is not None
    np.testing.assert_allclose(-likelihood, cross_entropy(theirs[:, :-1]), rtol=1e-12)
    for name, ours in (("fast", fast), ("exact", exact)):
        tokens: Tokens = found[name]
        np.testing.assert_allclose(-tokens.log_likelihood, cross_entropy(ours), rtol=1e-12)
        log_q, log_p = (torch.log_softmax(as_torch(one), -1) for one in (ours, theirs[:, :-1]))
        wanted = torch.nn.functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
        np.testing.assert_allclose(tokens.divergence, wanted.numpy(), rtol=1e-10)
        same = as_torch(ours).argmax(-1) == as_torch(theirs[:, :-1]).argmax(-1)
        assert np.array_equal(tokens.agreement, same.numpy())


def test_of_the_reference_only_the_bundles_vocabulary_counts():
    """A checkpoint's matrices may have lines that no token belongs to: they take no probability."""
    windows, logits = np.zeros((2, 4), np.int32), some(4, (2, 4, VOCAB))
    wide = np.concatenate([logits, np.full((2, 4, 6), 40, np.float32)], axis=-1)
    found, likelihood = measure(recorded({"fast": logits[:, :-1]}, 2), windows, reference_of(wide))
    assert (found["fast"].divergence == 0).all()
    assert (found["fast"].agreement == 1).all()
    assert np.array_equal(found["fast"].log_likelihood, cast(Any, likelihood))


def test_without_a_reference_there_are_only_likelihoods():
    logits = some(5, (2, 3, VOCAB))
    found, likelihood = measure(recorded({"cuda": logits}, 2), np.zeros((2, 4), np.int32), None)
    assert likelihood is None
    assert np.isfinite(found["cuda"].log_likelihood).all()
    assert np.isnan(found["cuda"].divergence).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_has_no_numbers_and_the_others_have_theirs(bad: float):
    logits, theirs = some(6, (3, 5, VOCAB)), some(7, (3, 6, VOCAB))
    windows = np.ones((3, 6), np.int32)
    sound, _ = measure(recorded({"fast": logits}, 2), windows, reference_of(theirs))
    logits = logits.copy()
    logits[1, 3, 17] = bad
    found, _ = measure(recorded({"fast": logits}, 2), windows, reference_of(theirs))
    for ours, wanted in zip(vars(found["fast"]).values(), vars(sound["fast"]).values(), strict=True):
        assert np.isnan(ours[1, 3])
        rest = np.ones((3, 5), bool)
        rest[1, 3] = False
        assert np.array_equal(ours[rest], wanted[rest])


def test_a_reference_that_can_not_be_one_is_refused_with_the_place():
    streams, windows = recorded({"fast": some(8, (2, 3, VOCAB))}, 2), np.zeros((2, 4), np.int32)
    damaged = some(9, (2, 4, VOCAB))
    damaged[1, 2, 5] = np.nan
    with pytest.raises(InputError, match="window 1, position 2"):
        measure(streams, windows, reference_of(damaged))
    with pytest.raises(InputError, match=r"\[4, 40\].*\[4, 50\]"):
        measure(streams, windows, reference_of(some(9, (2, 4, 40))))


logits = arrays.arrays(np.float32, (3, 8), elements=st.floats(-(2.0**100), 2.0**100, width=32))


@given(logits, logits)
def test_a_divergence_is_never_negative_and_zero_of_a_distribution_from_itself(ours: np.ndarray, theirs: np.ndarray):
    log_p, log_q = log_softmax(theirs), log_softmax(ours)
    assert (divergence(log_p, log_q) >= 0).all()
    assert (divergence(log_p, log_p) == 0).all()


@given(logits)
def test_probabilities_sum_to_one_whatever_the_logits(ours: np.ndarray):
    np.testing.assert_allclose(np.exp(log_softmax(ours)).sum(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(log_softmax(ours), torch.log_softmax(as_torch(ours), -1).numpy(), rtol=1e-12, atol=1e-12)
