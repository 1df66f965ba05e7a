"""A layer of the gated delta rule with the state of its slots, for the kernels and for the reference executor.

Whatever nobody may read is NaN: rows of padding, the scratch slot, ring columns of positions before 0 or of the one to
be written, the memory of a slot that begins, what outputs held before, and the surroundings of every array.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from kernel_launch import DTYPES, linear_value, nans, normal
from qpack_runtime.reference.mixers import causal_conv1d, gated_delta

SLOTS = 4
SCRATCH = SLOTS - 1
EPS = 1e-6
ALL_DTYPES = list(DTYPES.values())
FLOAT32 = DTYPES["float32"]


# Of what leaves the convolution: at 2**-10, lengths of query and key are as small as what is added under the root.
loudness = st.sampled_from([1.0, 2.0**-10])


@dataclass(frozen=True)
class Sizes:
    keys: int  # key heads
    shared: int  # value heads per key head
    d: int
    e: int
    w: int
    h: int

    @property
    def n(self) -> int:
        return self.keys * self.shared

    @property
    def c(self) -> int:
        return 2 * self.keys * self.d + self.n * self.e

    @property
    def x(self) -> int:
        return self.c + self.n * self.e


def sizes() -> st.SearchStrategy[Sizes]:
    return st.builds(
        Sizes,
        keys=st.integers(1, 2),
        shared=st.integers(1, 3),
        d=st.sampled_from([16, 32]),
        e=st.sampled_from([16, 32]),
        w=st.integers(2, 4),
        h=st.integers(5, 40),
    )


class Layer:
    """Weights, and the state of SLOTS slots as it is just before `starts`, a position per live slot."""

    def __init__(
        self, sizes: Sizes, dtype: np.dtype, weights: np.dtype, starts: dict[int, int], seed: int, loudness=1.0
    ):
        self.sizes, self.dtype, self.weights = sizes, dtype, weights
        self.random = np.random.default_rng(seed)
        s = sizes
        self.conv = normal(self.random, (s.c, s.w), weights, loudness)
        self.ba = normal(self.random, (2 * s.n, s.h), weights, s.h**-0.5)
        self.bias = normal(self.random, s.x, weights)
        self.norm = normal(self.random, s.e, weights)
        self.a_log = self.random.uniform(-3, 2, s.n).astype(np.float32)
        self.dt_bias = normal(self.random, s.n)
        self.ring = nans((SLOTS, s.c, s.w), dtype)
        self.memory = nans((SLOTS, s.n, s.d, s.e), FLOAT32)
        for slot, start in starts.items():
            for position in range(max(0, start - s.w + 1), start):
                self.ring[slot, :, position % s.w] = self.random.standard_normal(s.c)
            if start:
                self.memory[slot] = self.random.standard_normal((s.n, s.d, s.e))

    def rows(self, live: np.ndarray, planes: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x as the kernels read it, the value that it stands for [R, X], and hidden [R, H]."""
        hidden = normal(self.random, (len(live), self.sizes.h), self.dtype)
        x, value = linear_value(self.random, len(live), self.sizes.x, planes, self.dtype, self.bias)
        hidden[~live] = np.nan
        x[..., ~live, :] = np.nan
        return x, value, hidden

    def state(self) -> tuple[np.ndarray, np.ndarray]:
        return self.ring.copy(), self.memory.copy()

    def restore(self, state: tuple[np.ndarray, np.ndarray]) -> None:
        self.ring[...], self.memory[...] = state

    def reference(self, value, hidden, slots, positions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """y of the live rows, ring and memory afterwards, by the reference executor; leaves the layer as it is."""
        live = slots != SCRATCH
        value, hidden, slots, positions = value[live], hidden[live], slots[live], positions[live]
        ring, memory = self.state()
        u = np.empty((len(slots), self.sizes.c), self.dtype)
        y = np.empty((len(slots), self.sizes.n * self.sizes.e), self.dtype)
        causal_conv1d(value, self.conv, slots, positions, ring, u)
        gated_delta(
            u, hidden, value, self.ba.astype(np.float32), self.a_log, self.dt_bias, self.norm, slots, positions,
            memory, y, eps=EPS,
        )  # fmt: skip
        return y, ring, memory

    def check(self, y: np.ndarray, expected: tuple[np.ndarray, np.ndarray, np.ndarray], slots: np.ndarray) -> None:
        """y of the live rows and the state against the reference's; every other slot is as it was, NaN for NaN."""
        want, ring, memory = expected
        live = slots != SCRATCH
        assert self.ring.tobytes() == ring.tobytes()
        used = np.unique(slots[live])
        np.testing.assert_allclose(self.memory[used], memory[used], rtol=1e-4, atol=1e-5 * np.abs(memory[used]).max())
        unused = np.setdiff1d(np.arange(SLOTS), used)
        assert self.memory[unused].tobytes() == memory[unused].tobytes()
        want, got = want.astype(np.float32), y[live].astype(np.float32)
        step = {"float32": 1e-4, "bfloat16": 2**-7, "float16": 2**-10}[self.dtype.name]
        np.testing.assert_allclose(got, want, rtol=step, atol=1e-5 + 1e-5 * np.abs(want).max())
