"""The causal convolution on every code path: against the reference, against numpy's own convolution in float64, and a
row's bits whatever is beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instruction import kernels, run_cpu
from qpack_runtime.reference import mixers
from slot_rows import (
    DTYPES,
    PADDING,
    SCRATCH,
    SLOTS,
    Rows,
    assert_outputs,
    assert_rows_are_their_own,
    columns,
    prompts,
    steps,
    unwritten,
)

FLOAT32_SUMS = 2e-6  # of the largest value: seven taps and a sigmoid
PATHS = st.sampled_from(kernels().paths)
STARTS = st.lists(st.sampled_from([0, 0, 1, 2, 3, 4, 9]), min_size=SLOTS, max_size=SLOTS)


@dataclass(frozen=True)
class Case:
    channels: int
    taps: int
    beside: int  # columns of x that belong to others
    dtype: str = "float32"
    weights: str = "float32"
    seed: int = 0

    def draw(self, *key: int, shape: Sequence[int], dtype: str) -> np.ndarray:
        values = np.random.default_rng((self.seed, *key)).standard_normal(shape)
        return values.astype(np.float32).astype(DTYPES[dtype])

    @property
    def weight(self) -> np.ndarray:
        return self.draw(0, shape=(self.channels, self.taps), dtype=self.weights)

    def value(self, slot: int, position: int) -> np.ndarray:
        """The row of x at a position of a slot, [X]."""
        return self.draw(1, slot, position, shape=(self.channels + self.beside,), dtype=self.dtype)

    def state(self, starts: Sequence[int]) -> np.ndarray:
        """The ring, NaN in columns that are further back than the next row's window or before position 0."""
        ring = unwritten((SLOTS + 1, self.channels, self.taps), self.dtype)
        for slot, start in enumerate(starts):
            for position in range(max(0, start - self.taps + 1), start):
                ring[slot, :, position % self.taps] = self.value(slot, position)[: self.channels]
        return ring

    def operands(self, rows: Rows) -> dict[str, np.ndarray]:
        x = np.full((len(rows), self.channels + self.beside), np.nan, DTYPES[self.dtype])
        for index, row in enumerate(rows):
            if row != PADDING:
                x[index] = self.value(*row)
        return {"x": x, "weight": self.weight, **columns(rows)}

    def run(self, rows: Rows, state: np.ndarray, path: str, threads: int, active: int | None = None) -> np.ndarray:
        y = unwritten((len(rows), self.channels), self.dtype)
        operands = {**self.operands(rows), "ring": state, "y": y}
        run_cpu("causal_conv1d", operands, path=path, threads=threads, active=active, scratch_slot=SCRATCH)
        return y

    def reference(self, rows: Rows, state: np.ndarray) -> np.ndarray:
        """The same of the live rows alone, float32."""
        live = [row for row in rows if row != PADDING]
        y = np.zeros((len(live), self.channels), np.float32)
        mixers.causal_conv1d(**self.operands(live), ring=state, y=y)
        return y


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return Case(
        channels=draw(st.sampled_from([1, 5, 16, 17, 32, 63, 128, 131, 272])),
        taps=draw(st.sampled_from([1, 2, 3, 4, 4, 4, 5, 7])),
        beside=draw(st.integers(0, 3)),
        dtype=draw(st.sampled_from(sorted(DTYPES))),
        weights=draw(st.sampled_from(sorted(DTYPES))),
        seed=draw(st.integers(0, 2**31)),
    )


@pytest.mark.parametrize("kind", [prompts, steps])
@settings(max_examples=150)
@given(case=cases(), path=PATHS, threads=st.integers(1, 3), starts=STARTS, data=st.data())
def test_outputs_are_the_reference_s_and_so_is_every_byte_of_the_ring(kind, case, path, threads, starts, data):
    rows, active = data.draw(kind(starts))
    ring, wanted_ring = case.state(starts), case.state(starts)
    y = case.run(rows, ring, path, threads, active)
    assert_outputs(y, case.reference(rows, wanted_ring), rows, active, FLOAT32_SUMS)
    assert ring.tobytes() == wanted_ring.tobytes()


@pytest.mark.parametrize("path", kernels().paths)
def test_a_prompt_is_numpy_s_convolution(path):
    case, length = Case(channels=40, taps=4, beside=2), 13
    x = np.stack([case.value(0, position)[:40] for position in range(length)]).astype(np.float64)
    kernels = case.weight.astype(np.float64)[:, ::-1]  # the last tap is the row's own
    total = np.stack([np.convolve(x[:, c], kernels[c])[:length] for c in range(40)], axis=1)
    y = case.run([(0, position) for position in range(length)], case.state([0, 0, 0]), path, threads=2)
    np.testing.assert_allclose(y, total / (1 + np.exp(-total)), rtol=0, atol=FLOAT32_SUMS)


@settings(max_examples=100)
@given(case=cases(), path=PATHS, starts=STARTS, data=st.data())
def test_neither_neighbours_nor_cuts_nor_threads_change_a_bit(case, path, starts, data):
    assert_rows_are_their_own(case, starts, path, data)
