"""Rows of several slots in every way that a step may hold them: what the tests of instructions with state share.

A case knows what each slot is fed at each position, so that a row has the same inputs wherever it stands. Whatever no
row may read is NaN: rows of padding, the scratch slot, what outputs held before. Where nobody may write either, it is a
NaN that no computation gives.
"""

from collections.abc import Sequence
from typing import Protocol

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
SLOTS = 3
SCRATCH = SLOTS
PADDING = (SCRATCH, 0)

Rows = Sequence[tuple[int, int]]  # slot and position of each


class Case(Protocol):
    def state(self, starts: Sequence[int]) -> np.ndarray:
        """The state of all seats when each slot is about to take its start."""
        ...

    def run(self, rows: Rows, state: np.ndarray, path: str, threads: int, active: int | None = None) -> np.ndarray:
        """One step that changes `state`; y, a line per row."""
        ...


@st.composite
def prompts(draw: st.DrawFn, starts: Sequence[int]) -> tuple[Rows, int]:
    """Rows of slot 1 and padding, and how many of them are active."""
    length, padding = draw(st.integers(1, 9)), draw(st.integers(0, 3))
    rows = [*((1, starts[1] + index) for index in range(length)), *[PADDING] * padding]
    return rows, draw(st.integers(length, len(rows)))


@st.composite
def steps(draw: st.DrawFn, starts: Sequence[int]) -> tuple[Rows, int]:
    """A row of each of some slots in any order, padding between them, and how many are active."""
    seats = draw(st.permutations([*range(SLOTS), SCRATCH, SCRATCH]))
    last = draw(st.sampled_from([index for index, slot in enumerate(seats) if slot != SCRATCH]))
    behind = draw(st.integers(0, 2))
    rows = [(slot, starts[slot]) if slot != SCRATCH else PADDING for slot in seats[: last + 1]]
    return [*rows, *[PADDING] * behind], last + 1 + draw(st.integers(0, behind))


def unwritten(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Every bit is set, which is NaN; computed and copied ones are others."""
    array = np.empty(shape, DTYPES[dtype])
    array.view(np.uint8)[:] = 0xFF
    return array


def columns(rows: Rows) -> dict[str, np.ndarray]:
    slots, positions = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    return {"slots": slots, "positions": positions}


def assert_rounded(found: np.ndarray, wanted: np.ndarray, slack: float) -> None:
    """`wanted` is float32, `found` the same rounded to its dtype; `slack` is for sums in another order, relative to the
    largest value."""
    allowed = ROUNDOFF[found.dtype.name] * np.abs(wanted) + slack * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_array_less(np.abs(found.astype(np.float32) - wanted), allowed)


def assert_outputs(y: np.ndarray, wanted: np.ndarray, rows: Rows, active: int, slack: float) -> None:
    """`wanted` for the live rows, zero for padding, and nothing written behind the active rows."""
    live = [row != PADDING for row in rows]
    assert_rounded(y[live], wanted, slack)
    assert not y[:active][np.logical_not(live[:active])].any()
    assert (y[active:].view(np.uint8) == 0xFF).all()


def assert_rows_are_their_own(case: Case, starts: Sequence[int], path: str, data: st.DataObject) -> None:
    """The rows of each slot as one prompt on one thread; then cut into pieces that share steps with others and with
    padding, on other numbers of threads. Outputs and state are the same to the bit."""
    lengths = [data.draw(st.integers(1, 8)) for _ in starts]
    alone, state = dict[tuple[int, int], bytes](), case.state(starts)
    for slot, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        rows = [(slot, start + index) for index in range(length)]
        alone |= {row: y.tobytes() for row, y in zip(rows, case.run(rows, state, path, 1), strict=True)}

    mixed, other = dict[tuple[int, int], bytes](), case.state(starts)
    left = {slot: [row for row in alone if row[0] == slot] for slot in range(SLOTS)}
    while waiting := [slot for slot in left if left[slot]]:
        rows = list[tuple[int, int]]()
        for slot in data.draw(st.permutations(waiting))[: data.draw(st.integers(1, len(waiting)))]:
            count = data.draw(st.sampled_from([1, len(left[slot]), data.draw(st.integers(1, len(left[slot])))]))
            rows += left[slot][:count] + [PADDING] * data.draw(st.integers(0, 1))
            del left[slot][:count]
        y = case.run(rows, other, path, data.draw(st.integers(1, 3)))
        mixed |= {row: line.tobytes() for row, line in zip(rows, y, strict=True) if row != PADDING}
    assert mixed == alone
    assert other.tobytes() == state.tobytes()
