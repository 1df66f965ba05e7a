"""The gated delta rule on every code path: against the reference, against the paper's formula in float64, and a row's
bits whatever is beside it."""

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

FLOAT32_SUMS = 2e-5  # of the largest value: a few rows of sums over D, and a norm that may divide by little
PATHS = st.sampled_from(kernels().paths)
STARTS = st.lists(st.sampled_from([0, 0, 1, 9]), min_size=SLOTS, max_size=SLOTS)
EPS = 1e-6


@dataclass(frozen=True)
class Case:
    keys: int  # key heads
    shared: int  # value heads per key head
    dim: int
    width: int
    hidden: int = 24
    dtype: str = "float32"
    weights: str = "float32"
    loud: float = 1.0  # of queries and keys: at 2**-10 their lengths are as small as what is added under the root
    seed: int = 0

    @property
    def heads(self) -> int:
        return self.keys * self.shared

    def draw(self, *key: int, shape: Sequence[int], dtype: str = "float32", scale: float = 1.0) -> np.ndarray:
        values = np.random.default_rng((self.seed, *key)).standard_normal(shape) * scale
        return values.astype(np.float32).astype(DTYPES[dtype])

    @property
    def constants(self) -> dict[str, np.ndarray]:
        return {
            "ba": self.draw(0, shape=(2 * self.heads, self.hidden), dtype=self.weights, scale=self.hidden**-0.5),
            "a_log": self.draw(1, shape=(self.heads,)) - 1,
            "dt_bias": self.draw(2, shape=(self.heads,)),
            "norm": self.draw(3, shape=(self.width,), dtype=self.weights),
        }

    def value(self, slot: int, position: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows of u [C], x [H] and z [X], whose last N * E columns are the gate."""
        values = self.heads * self.width
        u = self.draw(4, slot, position, shape=(2 * self.keys * self.dim + values,))
        u[:-values] *= np.float32(self.loud)
        x = self.draw(5, slot, position, shape=(self.hidden,), dtype=self.dtype)
        return u.astype(DTYPES[self.dtype]), x, self.draw(6, slot, position, shape=(3 + values,), dtype=self.dtype)

    def state(self, starts: Sequence[int]) -> np.ndarray:
        """The memory, NaN of slots that begin."""
        memory = unwritten((SLOTS + 1, self.heads, self.dim, self.width), "float32")
        for slot, start in enumerate(starts):
            if start:
                memory[slot] = self.draw(7, slot, shape=memory.shape[1:])
        return memory

    def operands(self, rows: Rows) -> dict[str, np.ndarray]:
        values = dict(zip("uxz", map(np.stack, zip(*(self.value(*row) for row in rows), strict=True)), strict=True))
        for array in values.values():
            array[[row == PADDING for row in rows]] = np.nan
        return {**values, **self.constants, **columns(rows)}

    def run(self, rows: Rows, state: np.ndarray, path: str, threads: int, active: int | None = None) -> np.ndarray:
        y = unwritten((len(rows), self.heads * self.width), self.dtype)
        operands = {**self.operands(rows), "memory": state, "y": y}
        run_cpu("gated_delta", operands, {"eps": EPS}, path=path, threads=threads, active=active, scratch_slot=SCRATCH)
        return y

    def reference(self, rows: Rows, state: np.ndarray) -> np.ndarray:
        """The same of the live rows alone, float32."""
        operands = self.operands([row for row in rows if row != PADDING])
        operands["ba"] = operands["ba"].astype(np.float32)
        y = np.zeros((len(operands["u"]), self.heads * self.width), np.float32)
        mixers.gated_delta(**operands, memory=state, y=y, eps=EPS)
        return y


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return Case(
        keys=draw(st.integers(1, 2)),
        shared=draw(st.sampled_from([1, 2, 3, 17])),
        dim=draw(st.sampled_from([1, 5, 16, 20, 64])),
        width=draw(st.sampled_from([1, 9, 16, 31, 32, 63, 64, 72, 127, 128, 216])),
        hidden=draw(st.integers(1, 40)),
        dtype=draw(st.sampled_from(sorted(DTYPES))),
        weights=draw(st.sampled_from(sorted(DTYPES))),
        loud=draw(st.sampled_from([1.0, 2.0**-10])),
        seed=draw(st.integers(0, 2**31)),
    )


@pytest.mark.parametrize("kind", [prompts, steps])
@settings(max_examples=150)
@given(case=cases(), path=PATHS, threads=st.integers(1, 3), starts=STARTS, data=st.data())
def test_outputs_and_memory_are_the_reference_s(kind, case, path, threads, starts, data):
    rows, active = data.draw(kind(starts))
    memory, wanted = case.state(starts), case.state(starts)
    y = case.run(rows, memory, path, threads, active)
    assert_outputs(y, case.reference(rows, wanted), rows, active, FLOAT32_SUMS)
    used = sorted({slot for slot, _ in rows} - {SCRATCH})
    atol = 5e-6 * max(1.0, float(np.abs(wanted[used]).max()))
    np.testing.assert_allclose(memory[used], wanted[used], rtol=0, atol=atol)
    others = [slot for slot in range(SLOTS + 1) if slot not in used]
    assert memory[others].tobytes() == wanted[others].tobytes()


@pytest.mark.parametrize("path", kernels().paths)
def test_a_prompt_is_the_paper_s_recurrence(path):
    """S = S a (1 - b k k^T) + b v k^T and o = S q, as "Gated Delta Networks" has it, with S [E, D]; one head."""
    case, length = Case(keys=1, shared=1, dim=32, width=48), 12
    constants = {name: array.astype(np.float64) for name, array in case.constants.items()}
    state, wanted = np.zeros((48, 32)), []
    for position in range(length):
        u, x, z = (part.astype(np.float64) for part in case.value(0, position))
        q, k, v = u[:32] / np.linalg.norm(u[:32]) / np.sqrt(32), u[32:64] / np.linalg.norm(u[32:64]), u[64:]
        b, a = constants["ba"] @ x
        b = 1 / (1 + np.exp(-b))
        a = np.exp(-np.exp(constants["a_log"][0]) * np.log1p(np.exp(a + constants["dt_bias"][0])))
        state = state @ (a * (np.eye(32) - b * np.outer(k, k))) + b * np.outer(v, k)
        out = state @ q
        gate = z[3:] / (1 + np.exp(-z[3:]))
        wanted.append(out / np.sqrt(np.mean(out * out) + EPS) * constants["norm"] * gate)
    memory = case.state([0, 0, 0])
    y = case.run([(0, position) for position in range(length)], memory, path, threads=2)
    np.testing.assert_allclose(y, wanted, rtol=0, atol=FLOAT32_SUMS)
    np.testing.assert_allclose(memory[0, 0], state.T, rtol=0, atol=5e-6)


@pytest.mark.parametrize("path", kernels().paths)
def test_the_decay_is_right_to_a_millionth_wherever_softplus_is(path):
    """With zeros for all else, a memory of ones becomes the decay; each head has it near 1/e, for a t of its own."""
    t = np.concatenate([np.linspace(-80, 80, 161), np.linspace(-3, 3, 95)]).astype(np.float32)
    softplus = np.logaddexp(0, t.astype(np.float64))
    a_log = (-np.log(softplus)).astype(np.float32)
    memory = np.ones((SLOTS + 1, len(t), 1, 1), np.float32)
    case = Case(keys=1, shared=len(t), dim=1, width=1)
    operands = {name: np.zeros_like(array) for name, array in case.operands([(0, 1)]).items()}
    operands |= {**columns([(0, 1)]), "dt_bias": t, "a_log": a_log, "memory": memory}
    operands["y"] = np.zeros((1, len(t)), np.float32)
    run_cpu("gated_delta", operands, {"eps": EPS}, path=path)
    np.testing.assert_allclose(memory[0, :, 0, 0], np.exp(-np.exp(a_log.astype(np.float64)) * softplus), rtol=1e-6)


@settings(max_examples=100)
@given(case=cases(), path=PATHS, starts=STARTS, data=st.data())
def test_neither_neighbours_nor_cuts_nor_threads_change_a_bit(case, path, starts, data):
    assert_rows_are_their_own(case, starts, path, data)
