"""A layer of the gated delta rule with the state of its slots, for the kernels and for the reference executor.

Whatever nobody may read is NaN: rows of padding, the scratch slot, ring columns of positions before 0 or of the one to
be written, the memory of a slot that begins, what outputs held before, and the surroundings of every array.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st

from qpack_runtime.reference.mixers import causal_conv1d, gated_delta

SLOTS = 4
SCRATCH = SLOTS - 1
EPS = 1e-6
DTYPES = [np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)]
GUARD = 64  # bytes before and behind every array


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


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy with NaN (integers: -1) on either side, which `check_guards` looks at."""
    around = np.full(array.nbytes + 2 * GUARD, 0xFF, np.uint8)
    inside = around[GUARD:-GUARD].view(array.dtype).reshape(array.shape)
    inside[...] = array
    return inside


def poisoned(shape: tuple[int, ...], dtype: np.dtype = DTYPES[0]) -> np.ndarray:
    return guarded(np.full(shape, np.nan, dtype))


def check_guards(*arrays: np.ndarray) -> None:
    for array in arrays:
        around = array
        while around.nbytes != array.nbytes + 2 * GUARD:
            assert isinstance(around.base, np.ndarray)
            around = around.base
        edges = np.concatenate([around[:GUARD], around[-GUARD:]])
        assert (edges == 0xFF).all(), "a kernel wrote outside its array"


def pointer(array: np.ndarray) -> torch.Tensor:
    """The same memory as a tensor, which is what Triton takes for an address."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class Layer:
    """Weights, and the state of SLOTS slots as it is just before `starts`, a position per live slot."""

    def __init__(self, sizes: Sizes, dtype: np.dtype, weights: np.dtype, starts: dict[int, int], seed: int):
        self.sizes, self.dtype, self.weights = sizes, dtype, weights
        self.random = np.random.default_rng(seed)
        s = sizes
        self.conv = self._normal(weights, s.c, s.w)
        self.ba = self._normal(weights, 2 * s.n, s.h, scale=s.h**-0.5)
        self.bias = self._normal(weights, s.x)
        self.norm = self._normal(weights, s.e)
        self.a_log = guarded(self.random.uniform(-3, 2, s.n).astype(np.float32))
        self.dt_bias = self._normal(DTYPES[0], s.n)
        self.ring = poisoned((SLOTS, s.c, s.w), dtype)
        self.memory = poisoned((SLOTS, s.n, s.d, s.e))
        for slot, start in starts.items():
            for position in range(max(0, start - s.w + 1), start):
                self.ring[slot, :, position % s.w] = self.random.standard_normal(s.c)
            if start:
                self.memory[slot] = self.random.standard_normal((s.n, s.d, s.e))

    def _normal(self, dtype: np.dtype, *shape: int, scale: float = 1.0) -> np.ndarray:
        return guarded((self.random.standard_normal(shape) * scale).astype(dtype))

    def rows(self, live: np.ndarray, planes: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x as the kernels read it, the value that it stands for [R, X], and hidden [R, H]."""
        rows, width = len(live), self.sizes.x
        hidden = self._normal(self.dtype, rows, self.sizes.h)
        hidden[~live] = np.nan
        if planes == 0:
            x = self._normal(self.dtype, rows, width)
            x[~live] = np.nan
            return x, x, hidden
        x = self._normal(DTYPES[0], planes, rows, width)
        x[:, ~live] = np.nan
        value = sum(x[1:], x[0]) + self.bias.astype(np.float32)
        return x, value.astype(self.dtype), hidden

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
