"""Norm, rotation and the writing of the cache: against the reference and against complex numbers in float64."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instruction import kernels, run_cpu
from qpack_runtime.reference import mixers

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
FLOAT32_SUMS = 2e-6
PATHS = st.sampled_from(kernels().paths)
EPS, SLOTS = 1e-6, 3
SCRATCH = SLOTS
UNWRITTEN = 0xA5  # every byte of the cache and of q before


@dataclass(frozen=True)
class Case:
    heads: int
    groups: int
    dim: int
    half: int
    context: int
    dtype: str
    weights: str | None  # dtype of the norms, if there are any
    unit_offset: bool
    seed: int

    def operands(self, rows: int, start: int, prefill: bool, padding: float) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        columns = (self.heads + 2 * self.groups) * self.dim + 3  # what lies behind q, k and v belongs to others
        angles = np.outer(np.arange(self.context + 1), 0.7 ** np.arange(self.half))
        live = rng.random(rows) >= padding
        slots = np.full(rows, 1) if prefill else rng.permutation(max(SLOTS, rows))[:rows] % SLOTS
        positions = start + np.arange(rows) if prefill else rng.integers(0, self.context, rows)
        made = {
            "x": rng.standard_normal((rows, columns)).astype(np.float32).astype(DTYPES[self.dtype]),
            "rope": np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32),
            "slots": np.where(live, slots, SCRATCH).astype(np.int32),
            "positions": np.where(live, positions, 0).astype(np.int32),
        }
        if self.weights:
            for name in ("q_norm", "k_norm"):
                made[name] = rng.standard_normal(self.dim).astype(np.float32).astype(DTYPES[self.weights])
        return made

    def outputs(self, rows: int) -> dict[str, np.ndarray]:
        lines = (SLOTS * self.context + 1, self.groups, self.dim)
        sizes = {"k": lines, "v": lines, "q": (rows, self.heads, self.dim)}
        made = {name: np.empty(size, DTYPES[self.dtype]) for name, size in sizes.items()}
        for array in made.values():
            array.view(np.uint8)[:] = UNWRITTEN
        return made

    @property
    def attributes(self) -> dict[str, float]:
        return {"context": self.context, "eps": EPS, "unit_offset": self.unit_offset}

    def exact(self, given: dict[str, np.ndarray], row: int) -> tuple[np.ndarray, np.ndarray]:
        """Rotated queries and keys of a row in float64, each pair as one complex number."""
        width = (self.heads + self.groups) * self.dim
        x = given["x"][row, :width].astype(np.float64).reshape(-1, self.dim)
        if self.weights:
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
            scales = [given[name].astype(np.float64) + self.unit_offset for name in ("q_norm", "k_norm")]
            x = x * np.repeat(scales, [self.heads, self.groups], axis=0)
        cosines, sines = given["rope"][given["positions"][row]].astype(np.float64)
        turned = (x[:, : self.half] + 1j * x[:, self.half : 2 * self.half]) * (cosines + 1j * sines)
        out = np.concatenate([turned.real, turned.imag, x[:, 2 * self.half :]], axis=1)
        return out[: self.heads], out[self.heads :]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dim = draw(st.sampled_from([4, 16, 20, 32, 64, 80, 128, 256]))
    return Case(
        heads=draw(st.integers(1, 5)),
        groups=draw(st.integers(1, 3)),
        dim=dim,
        half=draw(st.sampled_from([dim // 2, dim // 4, dim // 8, 1])) or 1,
        context=draw(st.integers(12, 40)),
        dtype=draw(st.sampled_from(sorted(DTYPES))),
        weights=draw(st.sampled_from([None, *sorted(DTYPES)])),
        unit_offset=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
    )


def run(case: Case, given: dict[str, np.ndarray], path: str, threads: int = 2, active: int | None = None):
    made = case.outputs(len(given["slots"]))
    run_cpu(
        "rope_kv_write", {**given, **made}, case.attributes,
        path=path, threads=threads, active=active, scratch_slot=SCRATCH,
    )  # fmt: skip
    return made


@settings(max_examples=150)
@given(
    path=PATHS, case=cases(), rows=st.integers(1, 11), prefill=st.booleans(), threads=st.integers(1, 3), data=st.data()
)
def test_rows_are_normed_and_rotated_and_written_to_their_lines(
    path: str, case: Case, rows: int, prefill: bool, threads: int, data: st.DataObject
):
    rows = rows if prefill else min(rows, SLOTS)
    start = data.draw(st.integers(0, case.context - rows))
    given = case.operands(rows, start, prefill, data.draw(st.sampled_from([0.0, 0.4])))
    active = data.draw(st.integers(1, rows))
    made = run(case, given, path, threads, active)
    untouched = {name: np.ones(len(array), bool) for name, array in made.items()}
    untouched["q"][:active] = False
    for row in range(active):
        slot, position = given["slots"][row], given["positions"][row]
        if slot == SCRATCH:
            np.testing.assert_array_equal(made["q"][row].astype(np.float32), 0)
            continue
        line = slot * case.context + position
        untouched["k"][line] = untouched["v"][line] = False
        first = (case.heads + case.groups) * case.dim
        value = given["x"][row, first : first + case.groups * case.dim]
        assert made["v"][line].tobytes() == value.tobytes()
        for found, wanted in zip((made["q"][row], made["k"][line]), case.exact(given, row), strict=True):
            np.testing.assert_allclose(
                found.astype(np.float64), wanted,
                rtol=2 * ROUNDOFF[case.dtype], atol=FLOAT32_SUMS * np.abs(wanted).max(),
            )  # fmt: skip
    for name, where in untouched.items():
        assert (made[name][where].view(np.uint8) == UNWRITTEN).all(), f"wrote {name} where it must not"


@settings(max_examples=60)
@given(path=PATHS, case=cases(), rows=st.integers(1, 11))
def test_a_row_is_what_the_reference_makes_of_it(path: str, case: Case, rows: int):
    """Without a norm to the bit; with one within a step, since squares are added in another order."""
    given = case.operands(rows, 0, prefill=True, padding=0)
    found, wanted = run(case, given, path), case.outputs(rows)
    mixers.rope_kv_write(**given, **wanted, **case.attributes)
    for name in ("q", "k", "v"):
        if case.weights is None or name == "v":
            assert found[name].tobytes() == wanted[name].tobytes()
        else:
            pair = (array[name].astype(np.float64) for array in (found, wanted))
            np.testing.assert_allclose(*pair, rtol=2 * ROUNDOFF[case.dtype], atol=FLOAT32_SUMS * 20)


@settings(max_examples=40)
@given(path=PATHS, case=cases(), rows=st.integers(2, 11), data=st.data())
def test_a_row_has_the_same_bits_in_any_company(path: str, case: Case, rows: int, data: st.DataObject):
    given = case.operands(rows, 1, prefill=True, padding=0)
    whole = run(case, given, path)
    keep = np.array(data.draw(st.permutations(range(rows)))[: data.draw(st.integers(1, rows - 1))])
    per_row = {"x", "slots", "positions"}
    some = {name: np.ascontiguousarray(array[keep]) if name in per_row else array for name, array in given.items()}
    made = run(case, some, path, data.draw(st.integers(1, 3)))
    lines = case.context + given["positions"][keep]
    assert made["q"].tobytes() == whole["q"][keep].tobytes()
    for name in ("k", "v"):
        assert made[name][lines].tobytes() == whole[name][lines].tobytes()


@pytest.mark.parametrize("path", kernels().paths)
def test_values_are_copied_bit_for_bit(path: str):
    """A NaN keeps its payload and a zero its sign."""
    case = Case(1, 1, 20, 4, 12, "bfloat16", None, False, 0)
    given = case.operands(5, 0, prefill=True, padding=0)
    given["x"].view(np.uint16)[:] = np.random.default_rng(0).integers(0, 1 << 16, given["x"].shape)
    made = run(case, given, path)
    assert made["v"][case.context : case.context + 5].tobytes() == given["x"][:, 40:60].tobytes()
