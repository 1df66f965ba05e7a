"""Weights of every kind that rounding must cope with."""

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

KINDS = st.sampled_from(["gauss", "heavy tails", "one sided", "constant", "an outlier", "sparse", "tiny", "huge"])


def draw_weight(seed: int, n: int, groups: int, kind: str) -> np.ndarray:
    """bfloat16 [n, 128 * groups]."""
    rng, shape = np.random.default_rng(seed), (n, 128 * groups)
    weight = {
        "gauss": lambda: rng.standard_normal(shape),
        "heavy tails": lambda: rng.standard_t(2, shape),
        "one sided": lambda: np.abs(rng.standard_normal(shape)) + 3,
        "constant": lambda: np.full(shape, rng.standard_normal()),
        "an outlier": lambda: rng.standard_normal(shape) * 1e-3 + (np.arange(shape[1]) % 128 == 5) * 40,
        "sparse": lambda: rng.standard_normal(shape) * (rng.random(shape) < 0.02),
        "tiny": lambda: rng.standard_normal(shape) * 1e-38,
        "huge": lambda: rng.standard_normal(shape) * 1e36,
    }[kind]()
    return weight.astype(ml_dtypes.bfloat16)
