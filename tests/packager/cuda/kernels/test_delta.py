"""A step of convolution and gated delta rule, interpreted, against the reference executor."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_case import ALL_DTYPES, EPS, FLOAT32, SCRATCH, Layer, Sizes, loudness, sizes
from kernel_launch import DTYPES, launch, nans
from qpack_packager.cuda.kernels import delta


def step(layer: Layer, x, hidden, slots, positions, planes: int, block_e: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """y and out, both [R, N * E], by the two launches; the layer's ring and memory go one position on."""
    s, rows = layer.sizes, len(slots)
    out, y = nans((rows, s.n * s.e), FLOAT32), nans((rows, s.n * s.e), layer.dtype)
    bias = layer.bias if planes else None
    launch(
        delta.delta_step, (s.n, s.e // block_e, rows), x, bias, hidden, layer.conv, layer.ba, layer.a_log,
        layer.dt_bias, slots, positions, layer.ring, layer.memory, out, rows, X=s.x, C=s.c, W=s.w, H=s.h, N=s.n,
        KEYS=s.keys, D=s.d, E=s.e, SCRATCH=SCRATCH, PLANES=planes, BLOCK_E=block_e, BLOCK_H=16,
    )  # fmt: skip
    launch(
        delta.delta_norm, (s.n, rows), out, x, bias, layer.norm, y, rows, X=s.x, N=s.n, E=s.e, PLANES=planes, EPS=EPS
    )  # fmt: skip
    return y, out


@st.composite
def decode_rows(draw) -> tuple[np.ndarray, np.ndarray]:
    """Slots and positions of a bucket: distinct slots, padding anywhere."""
    slots = draw(st.lists(st.integers(0, SCRATCH - 1), unique=True, min_size=1, max_size=2))
    slots = draw(st.permutations(slots + [SCRATCH] * draw(st.integers(0, 1))))
    positions = [0 if slot == SCRATCH else draw(st.integers(0, 9)) for slot in slots]
    return np.array(slots, np.int32), np.array(positions, np.int32)


def starts(slots: np.ndarray, positions: np.ndarray) -> dict[int, int]:
    return {int(slot): int(position) for slot, position in zip(slots, positions, strict=True) if slot != SCRATCH}


any_dtype = st.sampled_from(ALL_DTYPES)


@given(
    sizes(), any_dtype, any_dtype, decode_rows(), st.integers(0, 3), st.sampled_from([16, 32]), loudness,
    st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=20)
def test_a_step_is_the_convolution_and_delta_rule_of_the_reference(
    s, dtype, weights, rows, planes, block_e, loudness, seed
):
    slots, positions = rows
    layer = Layer(s, dtype, weights, starts(slots, positions), seed, loudness)
    x, value, hidden = layer.rows(slots != SCRATCH, planes)
    expected = layer.reference(value, hidden, slots, positions)
    y, out = step(layer, x, hidden, slots, positions, planes, min(block_e, s.e))
    layer.check(y, expected, slots)
    assert not out[slots == SCRATCH].any()  # zero, not what an earlier step left


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_steps_follow_each_other_through_a_sequence(dtype):
    layer = Layer(Sizes(keys=1, shared=2, d=16, e=16, w=4, h=24), dtype, dtype, {1: 0}, 3)
    slots = np.array([1], np.int32)
    for position in range(5):
        positions = np.array([position], np.int32)
        x, value, hidden = layer.rows(slots != SCRATCH, 2)
        expected = layer.reference(value, hidden, slots, positions)
        y, _ = step(layer, x, hidden, slots, positions, 2)
        layer.check(y, expected, slots)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_a_row_gets_the_same_bits_alone_and_among_others(dtype):
    slots, positions = np.array([2, SCRATCH, 0, 1], np.int32), np.array([5, 0, 0, 2], np.int32)
    s = Sizes(keys=1, shared=2, d=16, e=16, w=4, h=40)
    layer = Layer(s, dtype, DTYPES["bfloat16"], starts(slots, positions), 7)
    before = layer.state()
    x, _, hidden = layer.rows(slots != SCRATCH, 3)
    y, _ = step(layer, x, hidden, slots, positions, 3)
    ring, memory = layer.state()
    for row in np.flatnonzero(slots != SCRATCH):
        layer.restore(before)
        one = slice(row, row + 1)
        alone, _ = step(layer, x[:, one], hidden[one], slots[one], positions[one], 3)
        assert alone.tobytes() == y[one].tobytes()
        slot = slots[row]
        assert layer.ring[slot].tobytes() == ring[slot].tobytes()
        assert layer.memory[slot].tobytes() == memory[slot].tobytes()
