"""One step of convolution and gated delta rule, interpreted, against the reference executor."""

import interpreter

interpreter.install()

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpreterBuilder

from delta_case import DTYPES, EPS, SCRATCH, Layer, Sizes, check_guards, guarded, pointer, poisoned, sizes
from qpack_packager.cuda.kernels import delta


def step(layer: Layer, x, hidden, slots, positions, planes: int, block_e: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """y [R, N * E] and out [R, N * E] by the two launches; ring and memory of the layer go one position on."""
    s, rows = layer.sizes, len(slots)
    out, y = poisoned((rows, s.n * s.e)), poisoned((rows, s.n * s.e), layer.dtype)
    slots, positions, x, hidden = guarded(slots), guarded(positions), guarded(x), guarded(hidden)
    bias = pointer(layer.bias) if planes else None
    delta.delta_step[s.n, s.e // block_e, rows](
        pointer(x), bias, pointer(hidden), pointer(layer.conv), pointer(layer.ba), pointer(layer.a_log),
        pointer(layer.dt_bias), pointer(slots), pointer(positions), pointer(layer.ring), pointer(layer.memory),
        pointer(out), rows, X=s.x, C=s.c, W=s.w, H=s.h, N=s.n, KEYS=s.keys, D=s.d, E=s.e, SCRATCH=SCRATCH,
        PLANES=planes, BLOCK_E=block_e, BLOCK_H=16,
    )  # fmt: skip
    delta.delta_norm[s.n, rows](
        pointer(out), pointer(x), bias, pointer(layer.norm), pointer(y), rows, X=s.x, N=s.n, E=s.e, PLANES=planes,
        EPS=EPS,
    )  # fmt: skip
    check_guards(out, y, slots, positions, x, hidden, layer.ring, layer.memory)
    return y, out


def reverse_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last program of a grid runs first from now on."""
    place = InterpreterBuilder.set_grid_idx

    def mirrored(builder, *at):
        place(builder, *(size - 1 - index for size, index in zip(builder.grid_dim, at, strict=True)))

    monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", mirrored)


@st.composite
def decode_rows(draw) -> tuple[np.ndarray, np.ndarray]:
    """Slots and positions of a bucket: distinct slots, padding anywhere."""
    slots = draw(st.lists(st.integers(0, SCRATCH - 1), unique=True, min_size=1, max_size=2))
    slots += [SCRATCH] * draw(st.integers(0, 1))
    slots = draw(st.permutations(slots))
    positions = [0 if slot == SCRATCH else draw(st.integers(0, 9)) for slot in slots]
    return np.array(slots, np.int32), np.array(positions, np.int32)


def starts(slots: np.ndarray, positions: np.ndarray) -> dict[int, int]:
    return {int(slot): int(position) for slot, position in zip(slots, positions, strict=True) if slot != SCRATCH}


@given(sizes(), st.sampled_from(DTYPES), st.sampled_from(DTYPES), decode_rows(), st.integers(0, 3), st.integers(0, 99))
@settings(max_examples=40)
def test_a_step_is_the_convolution_and_delta_rule_of_the_reference(s, dtype, weights, rows, planes, seed):
    slots, positions = rows
    layer = Layer(s, dtype, weights, starts(slots, positions), seed)
    x, value, hidden = layer.rows(slots != SCRATCH, planes)
    expected = layer.reference(value, hidden, slots, positions)
    y, out = step(layer, x, hidden, slots, positions, planes)
    layer.check(y, expected, slots)
    assert not out[slots == SCRATCH].any()  # zero, not what an earlier step left


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_follow_each_other_through_a_sequence(dtype):
    layer = Layer(Sizes(keys=1, shared=2, d=16, e=16, w=4, h=24), dtype, dtype, {1: 0}, 3)
    slots = np.array([1], np.int32)
    for position in range(7):
        positions = np.array([position], np.int32)
        x, value, hidden = layer.rows(slots != SCRATCH, 2)
        expected = layer.reference(value, hidden, slots, positions)
        y, _ = step(layer, x, hidden, slots, positions, 2)
        layer.check(y, expected, slots)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_gets_the_same_bits_alone_and_among_others_and_in_any_order_of_programs(dtype, monkeypatch):
    s = Sizes(keys=2, shared=2, d=16, e=32, w=4, h=40)
    slots, positions = np.array([2, SCRATCH, 0, 1], np.int32), np.array([5, 0, 0, 2], np.int32)
    layer = Layer(s, dtype, DTYPES[1], starts(slots, positions), 7)
    before = layer.state()
    x, _, hidden = layer.rows(slots != SCRATCH, 3)
    y, _ = step(layer, x, hidden, slots, positions, 3)
    ring, memory = layer.state()

    layer.restore(before)
    reverse_programs(monkeypatch)
    again, _ = step(layer, x, hidden, slots, positions, 3)
    monkeypatch.undo()
    live = slots != SCRATCH
    assert again[live].tobytes() == y[live].tobytes()
    assert [part.tobytes() for part in layer.state()] == [ring.tobytes(), memory.tobytes()]

    for row in np.flatnonzero(live):
        layer.restore(before)
        one = slice(row, row + 1)
        alone, _ = step(layer, x[:, one], hidden[one], slots[one], positions[one], 3)
        assert alone.tobytes() == y[one].tobytes()
        slot = slots[row]
        assert layer.ring[slot].tobytes() == ring[slot].tobytes()
        assert layer.memory[slot].tobytes() == memory[slot].tobytes()


@pytest.mark.parametrize("writer", ["first", "last"])
def test_the_program_that_writes_the_shared_columns_of_the_ring_disturbs_no_other(writer, monkeypatch):
    """All programs of a key head read the columns that one of them writes, in any order. W = 2 leaves the least room."""
    layer = Layer(Sizes(keys=1, shared=3, d=16, e=32, w=2, h=16), DTYPES[0], DTYPES[0], {0: 4}, 11)
    slots, positions = np.array([0], np.int32), np.array([4], np.int32)
    x, value, hidden = layer.rows(slots != SCRATCH)
    expected = layer.reference(value, hidden, slots, positions)
    if writer == "last":
        reverse_programs(monkeypatch)
    y, _ = step(layer, x, hidden, slots, positions, 0)
    layer.check(y, expected, slots)
