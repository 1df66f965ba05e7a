"""Attention against its formula in float64, and that a row's bits are its own.

Whatever no row may read is NaN: positions behind a row's own, other slots, rows of padding, what outputs held before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from instruction import kernels, run_cpu
from qpack_runtime.reference import mixers

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
FLOAT32_SUMS = 4e-6  # of the largest value: some hundreds of float32 operations
PATHS = st.sampled_from(kernels().paths)
DIMS = st.sampled_from([3, 8, 16, 20, 32, 40, 64, 80, 96, 128, 256])
SLOTS = 3
SCRATCH = SLOTS

Rows = list[tuple[int, int]]  # slot and position of each; SCRATCH is padding


@dataclass(frozen=True)
class Case:
    groups: int
    shared: int  # query heads per key head
    dim: int
    dtype: str = "float32"
    context: int = 300
    gated: bool = True
    seed: int = 0
    loud: float = 1.0  # of the scores

    @property
    def heads(self) -> int:
        return self.groups * self.shared

    def draw(self, *key: int, shape: Sequence[int]) -> np.ndarray:
        values = np.random.default_rng((self.seed, *key)).standard_normal(shape)
        return values.astype(np.float32).astype(DTYPES[self.dtype])

    @lru_cache(maxsize=2 * SLOTS)  # noqa: B019, a case is a value
    def cache(self, slot: int) -> np.ndarray:
        """Keys and values of a slot, [2, context, G, D]. A longer context begins with those of a shorter one."""
        return np.stack([self.draw(which, slot, shape=(self.context, self.groups, self.dim)) for which in (0, 1)])

    def row(self, slot: int, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Query [A, D] and gate row, whose first columns belong to others."""
        q = self.draw(2, slot, position, shape=(self.heads, self.dim)) * DTYPES[self.dtype](self.loud)
        return q, self.draw(3, slot, position, shape=(5 + self.heads * self.dim,))

    def operands(self, rows: Rows) -> dict[str, np.ndarray]:
        lines = np.full((2, SLOTS * self.context + 1, self.groups, self.dim), np.nan, DTYPES[self.dtype])
        q = np.full((len(rows), self.heads, self.dim), np.nan, DTYPES[self.dtype])
        gate = np.full((len(rows), 5 + self.heads * self.dim), np.nan, DTYPES[self.dtype])
        for index, (slot, position) in enumerate(rows):
            if slot != SCRATCH:
                end = position + 1
                lines[:, slot * self.context : slot * self.context + end] = self.cache(slot)[:, :end]
                q[index], gate[index] = self.row(slot, position)
        slots, positions = (np.array(column, np.int32) for column in zip(*rows, strict=True))
        made = {"q": q, "slots": slots, "positions": positions, "k": lines[0], "v": lines[1]}
        return made | ({"gate": gate} if self.gated else {})

    def run(self, rows: Rows, path: str, threads: int = 2, active: int | None = None) -> np.ndarray:
        y = np.full((len(rows), self.heads * self.dim), np.nan, DTYPES[self.dtype])
        given = self.operands(rows)
        run_cpu(
            "attention", {**given, "y": y}, {"context": self.context},
            path=path, threads=threads, active=active, scratch_slot=SCRATCH,
        )  # fmt: skip
        return y

    def exact(self, slot: int, position: int) -> np.ndarray:
        q, gate = (array.astype(np.float64) for array in self.row(slot, position))
        keys, values = self.cache(slot)[:, : position + 1].astype(np.float64).repeat(self.shared, axis=2)
        scores = np.einsum("ad,pad->ap", q, keys) / np.sqrt(self.dim)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("ap,pad->ad", weights, values).reshape(-1)
        return out / (1 + np.exp(-gate[5:])) if self.gated else out


cases = st.builds(
    Case, groups=st.integers(1, 4), shared=st.sampled_from([1, 2, 3, 4, 5, 7, 9]), dim=DIMS,
    dtype=st.sampled_from(sorted(DTYPES)), context=st.sampled_from([40, 128, 300, 520]), gated=st.booleans(),
    seed=st.integers(0, 2**31), loud=st.sampled_from([0.1, 1.0, 30.0]),
)  # fmt: skip


def starts(context: int, length: int) -> st.SearchStrategy[int]:
    """Often at the end of the context, where there are the most blocks of keys."""
    last = max(context - length, 0)
    return st.one_of(st.just(last), st.integers(0, last))


@st.composite
def steps(draw: st.DrawFn, context: int) -> Rows:
    """A decode step, or chunks of the prompts of some slots, with padding anywhere."""
    pieces = []
    for slot in draw(st.permutations(range(SLOTS))):
        length = draw(st.sampled_from([0, 1, 1, 2, 7, 20, 70]))
        start = draw(starts(context, length))
        pieces.append([(slot, position) for position in range(start, min(start + length, context))])
        pieces.append([(SCRATCH, 0)] * draw(st.sampled_from([0, 0, 1, 3])))
    return [row for piece in pieces for row in piece] or [(0, context - 1)]


@settings(max_examples=120)
@given(path=PATHS, case=cases, threads=st.integers(1, 3), data=st.data())
def test_every_row_is_the_softmax_over_its_own_keys(path: str, case: Case, threads: int, data: st.DataObject):
    rows = data.draw(steps(case.context))
    active = data.draw(st.integers(1, len(rows)))
    y = case.run(rows, path, threads, active).astype(np.float64)
    for index in data.draw(st.permutations(range(active)))[:8]:
        slot, position = rows[index]
        if slot == SCRATCH:
            np.testing.assert_array_equal(y[index], 0)
            continue
        wanted = case.exact(slot, position)
        largest = np.abs(case.cache(slot)[1, : position + 1].astype(np.float64)).max()
        # A score's own rounding error, which e^x makes a relative one, grows with the score.
        error = FLOAT32_SUMS * max(case.loud, 1)
        np.testing.assert_allclose(y[index], wanted, rtol=2 * ROUNDOFF[case.dtype], atol=error * largest)
    assert np.isnan(y[active:]).all(), "computed rows that are not active"


@settings(max_examples=40)
@given(path=PATHS, case=cases, data=st.data())
def test_a_row_is_what_the_reference_makes_of_it(path: str, case: Case, data: st.DataObject):
    rows = [row for row in data.draw(steps(case.context)) if row[0] != SCRATCH][:20] or [(0, 0)]
    given = case.operands(rows)
    wanted = np.zeros((len(rows), case.heads * case.dim), DTYPES[case.dtype])
    mixers.attention(**given, y=wanted, context=case.context)
    found = case.run(rows, path)
    largest = np.nanmax(np.abs(given["v"].astype(np.float64)))
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64),
        rtol=4 * ROUNDOFF[case.dtype], atol=FLOAT32_SUMS * max(case.loud, 1) * largest,
    )  # fmt: skip


@pytest.mark.parametrize("path", kernels().paths)
def test_a_prompt_is_what_torch_makes_of_it(path: str):
    case = Case(groups=2, shared=3, dim=64, gated=False)
    given = case.operands([(1, position) for position in range(case.context)])
    lines = slice(case.context, 2 * case.context)
    q, k, v = (torch.tensor(array).transpose(0, 1) for array in (given["q"], given["k"][lines], given["v"][lines]))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    found = case.run([(1, position) for position in range(case.context)], path)
    np.testing.assert_allclose(found, wanted.transpose(0, 1).reshape(found.shape).numpy(), atol=FLOAT32_SUMS * 4)


@settings(max_examples=60)
@given(path=PATHS, case=cases, threads=st.integers(1, 3), data=st.data())
def test_a_row_has_the_same_bits_in_any_company(path: str, case: Case, threads: int, data: st.DataObject):
    """Alone, in a prompt however cut, beside other slots and padding, and with room for another context."""
    length = data.draw(st.integers(1, min(case.context, 90)))
    start = data.draw(starts(case.context, length))
    prompt = [(1, position) for position in range(start, start + length)]
    whole = case.run(prompt, path, threads)
    cut, alone = data.draw(st.integers(0, length)), data.draw(st.integers(0, length - 1))
    beside = [row for row in data.draw(steps(case.context)) if row[0] != 1]
    for rows in (prompt[:cut], prompt[cut:], prompt[alone : alone + 1], beside + prompt[cut:], prompt[:cut] + beside):
        if rows:
            other = replace(case, context=case.context + data.draw(st.sampled_from([0, 1, 200])))
            found = other.run(rows, path, data.draw(st.integers(1, 3)))
            for index, (slot, position) in enumerate(rows):
                assert slot != 1 or found[index].tobytes() == whole[position - start].tobytes()


@pytest.mark.parametrize("slope", [-3.0, -1.0, 1.0, 3.0])
@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("path", kernels().paths)
def test_scores_may_rise_or_fall_by_more_than_an_exponent_holds(path: str, rows: int, slope: float):
    """Scores slope * position: e^score of float32 ends at 88, and from block to block they change by 128 and more."""
    case = Case(groups=1, shared=1, dim=16, gated=False)
    given = case.operands([(0, 280 + row) for row in range(rows)])
    y = np.zeros((rows, 16), np.float32)
    given["q"][:] = slope / 4
    given["k"][:] = np.arange(len(given["k"]))[:, None, None]
    run_cpu("attention", {**given, "y": y}, {"context": case.context}, path=path)
    for row in range(rows):
        scores = slope * np.arange(281.0 + row)
        weights = np.exp(scores - scores.max())
        wanted = weights @ given["v"][: len(weights), 0].astype(np.float64) / weights.sum()
        np.testing.assert_allclose(y[row], wanted, atol=FLOAT32_SUMS * 100)


@pytest.mark.parametrize("path", kernels().paths)
def test_results_too_large_to_keep_apart_are_walked_with_the_same_bits(path: str):
    """With a context of 2^21 positions the partial results of a step would not fit; the cache of slot 0 is enough."""
    case = Case(groups=2, shared=2, dim=20, dtype="bfloat16")
    rows = [(0, 299)] * 2
    near, far = (np.zeros((2, case.heads * case.dim), DTYPES[case.dtype]) for _ in range(2))
    for y, context in ((near, case.context), (far, 1 << 21)):
        run_cpu("attention", {**case.operands(rows), "y": y}, {"context": context}, path=path, scratch_slot=SCRATCH)
    assert near.tobytes() == far.tobytes()
    assert np.isfinite(near.astype(np.float32)).all()


@pytest.mark.parametrize("rows", [12, 40])
@pytest.mark.parametrize("operand", ["k", "v"])
@pytest.mark.parametrize("path", kernels().paths)
def test_nan_reaches_the_rows_that_read_it_and_no_other(path: str, operand: str, rows: int):
    case = Case(groups=2, shared=2, dim=32, gated=False)
    start = 120
    prompt = [(1, position) for position in range(start, start + rows)]
    clean, found = (np.zeros((rows, case.heads * case.dim), np.float32) for _ in range(2))
    run_cpu("attention", {**case.operands(prompt), "y": clean}, {"context": case.context}, path=path)
    given = case.operands(prompt)
    given[operand][case.context + start + 5, 0, 3] = np.nan
    run_cpu("attention", {**given, "y": found}, {"context": case.context}, path=path)
    width = case.shared * case.dim  # of the heads that share the damaged key head
    assert found[:5].tobytes() == clean[:5].tobytes()
    assert found[5:, width:].tobytes() == clean[5:, width:].tobytes()
    assert np.isnan(found[5:, :width].reshape(rows - 5, case.shared, -1)[:, :, 3]).all()
