"""Requests and rows of logits of every kind that `sample` must cope with, for the tests of each executor's kernels."""

import numpy as np
from hypothesis import strategies as st

from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.sampling import PROMPT_BIT

LARGEST = float(np.finfo(np.float32).max)
COUNTS = np.array([0, 0, 0, 1, 2, 7, 32767, PROMPT_BIT, PROMPT_BIT + 3], np.int16)


def random_logits(rows, size, rng, scale=2.0):
    """Rows of logits whose padded ids would win every comparison."""
    vocab, width = size
    logits = (rng.standard_normal((rows, width)) * scale).astype(np.float32)
    logits[:, vocab:] = rng.choice(np.array([np.nan, np.inf, 1e30], np.float32), (rows, width - vocab))
    return logits


KINDS = ("normal", "wide", "huge", "ties", "flat", "low", "holes", "infinite", "broken")


def logits_of(kind, size, rng):
    vocab, _ = size
    z = random_logits(1, size, rng, {"wide": 30, "huge": 5e37}.get(kind, 2.0))
    real = z[:, :vocab]
    if kind == "ties":
        real[:] = rng.choice(np.array([0.0, -0.0, 1.0, -2.5], np.float32), vocab)
    elif kind == "flat":
        real[:] = 0.25
    elif kind == "low":
        real[:] -= 1000
    elif kind == "holes":
        real[:, rng.random(vocab) < 0.9] = -np.inf
    elif kind == "infinite":
        real[:] = -np.inf
        real[:, rng.integers(0, vocab, 3)] = [-3e38, -3e38, -3.3e38]
    elif kind == "broken":
        real[:, rng.integers(0, vocab)] = rng.choice([np.nan, np.inf, -np.nan])
    return z


def requests_of(vocab):
    return st.builds(
        SamplingOptions,
        temperature=st.sampled_from([0.0, 1e-5, 0.3, 1.0, 5.0, 1e30]),
        top_k=st.sampled_from([0, 0, 1, 5, 40, 256]),
        top_p=st.sampled_from([1.0, 0.99, 0.9, 0.5, 1e-9]),
        min_p=st.sampled_from([0.0, 1e-4, 0.1, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.5, LARGEST, 2e-38]),
        presence_penalty=st.sampled_from([0.0, 0.5, -2.0, LARGEST]),
        frequency_penalty=st.sampled_from([0.0, 0.25, -0.1, LARGEST]),
        seed=st.integers(0, 2**64 - 1),
        logit_bias=st.dictionaries(
            st.integers(0, vocab - 1), st.sampled_from([-LARGEST, -3.0, 0.5, 8.0, LARGEST]), max_size=9
        ),
        logprobs=st.booleans(),
    )
