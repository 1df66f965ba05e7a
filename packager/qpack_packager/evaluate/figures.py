"""From numbers per token to the few that a person decides by, each with its standard error."""

import math
from typing import TypedDict

import numpy as np

from qpack_packager.evaluate.measure import Tokens

EDGES = tuple(10 ** (exponent / 2) for exponent in range(-12, 3))  # of the histogram: 1e-6 to 10 nats, two a decade
LARGEST = 1e300  # of any figure: JSON has no infinity
SHOWN_PLACES = 20


class Place(TypedDict):
    window: int
    position: int


class Histogram(TypedDict):
    edges: list[float]  # nats
    tokens: list[int]  # one more than edges: below the first, between each two, from the last on


class Figures(TypedDict):
    """None: without a reference, without a second window for an error, or because of logits that are not finite."""

    perplexity: float | None
    perplexity_stderr: float | None
    ppl_ratio: float | None
    ppl_ratio_stderr: float | None
    kl_mean: float | None
    kl_stderr: float | None
    kl_p99: float | None
    kl_max: float | None
    top1_agreement: float | None
    kl_histogram: Histogram | None
    nonfinite_tokens: int
    nonfinite: list[Place]  # the first row of each window that has one; at most SHOWN_PLACES


def perplexity(log_likelihood: np.ndarray) -> tuple[float, float | None]:
    """exp(-mean) of log-likelihoods float64 [windows, rows], and its standard error.

    Tokens of a window depend on each other, windows far less: windows are the blocks, and the error of the mean is that
    of their means (clustered standard errors, Miller 2024, arXiv:2411.00640, section 2.2). The delta method takes it
    through the exponential: se(exp m) = exp(m) se(m)."""
    mean, error = _mean(-log_likelihood)
    value = math.exp(min(mean, math.log(LARGEST)))
    return value, None if error is None else min(value * error, LARGEST)


def figures(tokens: Tokens, reference: np.ndarray | None) -> Figures:
    """`reference`: log-likelihoods float64 [windows, rows] of the same tokens. The ratio of perplexities is
    exp(mean difference), and its error that of pairs: what makes a window hard for both cancels. Figures that would
    leave out a token are None, since a mean without its worst flatters."""
    finite = np.isfinite(tokens.log_likelihood)
    hit = np.flatnonzero(~finite.all(-1)).tolist()
    found = Figures(
        perplexity=None, perplexity_stderr=None, ppl_ratio=None, ppl_ratio_stderr=None, kl_mean=None, kl_stderr=None,
        kl_p99=None, kl_max=None, top1_agreement=None, kl_histogram=None,
        nonfinite_tokens=int((~finite).sum()),
        nonfinite=[{"window": window, "position": int(np.argmin(finite[window]))} for window in hit[:SHOWN_PLACES]],
    )  # fmt: skip
    if not hit:
        found["perplexity"], found["perplexity_stderr"] = perplexity(tokens.log_likelihood)
    if not hit and reference is not None:
        kl = tokens.divergence
        found["ppl_ratio"], found["ppl_ratio_stderr"] = perplexity(tokens.log_likelihood - reference)
        found["kl_mean"], found["kl_stderr"] = _mean(kl)
        found["kl_p99"], found["kl_max"] = float(np.quantile(kl, 0.99)), float(kl.max())
        found["top1_agreement"] = float(tokens.agreement.mean())
        found["kl_histogram"] = histogram(kl)
    return found


def histogram(kl: np.ndarray) -> Histogram:
    """How many tokens lie between each two EDGES; an edge belongs to what is above it."""
    places = np.searchsorted(EDGES, kl.ravel(), side="right")
    return {"edges": list(EDGES), "tokens": np.bincount(places, minlength=len(EDGES) + 1).tolist()}


def _mean(values: np.ndarray) -> tuple[float, float | None]:
    """Of [windows, rows], and its standard error with windows as blocks; None if there is one window."""
    means = values.mean(-1)
    error = float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else None
    return float(means.mean()), error
