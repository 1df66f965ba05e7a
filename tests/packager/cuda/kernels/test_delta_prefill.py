"""The gated delta rule over a prompt, interpreted, against the reference executor."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_case import ALL_DTYPES, EPS, FLOAT32, SCRATCH, Layer, Sizes, loudness, sizes
from kernel_launch import DTYPES, launch, nans
from qpack_packager.cuda.kernels import delta, delta_prefill

SLOT = 1


def bucket(start: int, live: int, padding: int) -> tuple[np.ndarray, np.ndarray]:
    """Slots and positions of `live` rows from `start` on."""
    slots = np.array([SLOT] * live + [SCRATCH] * padding, np.int32)
    return slots, np.array([*range(start, start + live), *[0] * padding], np.int32)


def convolve(layer: Layer, x: np.ndarray, slots: np.ndarray, positions: np.ndarray, block: int = 64) -> np.ndarray:
    """u [R, C]; the layer's ring holds the last positions afterwards."""
    s, rows = layer.sizes, len(slots)
    u, grid = nans((rows, s.c), layer.dtype), (-(-s.c // block), rows)
    launch(
        delta_prefill.conv_prefill, grid, x, layer.conv, slots, positions, layer.ring, u, X=s.x, C=s.c, W=s.w,
        SCRATCH=SCRATCH, BLOCK=block,
    )  # fmt: skip
    launch(
        delta_prefill.ring_write, grid, x, slots, positions, layer.ring, rows, X=s.x, C=s.c, W=s.w, SCRATCH=SCRATCH,
        BLOCK=block,
    )  # fmt: skip
    return u


def gates_of(layer: Layer, hidden: np.ndarray) -> np.ndarray:
    """float32 [R, 2N]: decay | beta."""
    s, rows = layer.sizes, len(hidden)
    gates = nans((rows, 2 * s.n), FLOAT32)
    launch(
        delta_prefill.delta_gates, (s.n, rows), hidden, layer.ba, layer.a_log, layer.dt_bias, gates, H=s.h, N=s.n,
        BLOCK_H=16,
    )  # fmt: skip
    return gates


def prefill(layer: Layer, x, hidden, slots, positions, block_e: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """y and out, both [R, N * E], by the five launches; the layer's ring and memory go all rows on."""
    s, rows = layer.sizes, len(slots)
    out, y = nans((rows, s.n * s.e), FLOAT32), nans((rows, s.n * s.e), layer.dtype)
    u, gates = convolve(layer, x, slots, positions), gates_of(layer, hidden)
    launch(
        delta_prefill.delta_scan, (s.n, s.e // block_e), u, gates, slots, positions, layer.memory, out, rows, C=s.c,
        N=s.n, KEYS=s.keys, D=s.d, E=s.e, SCRATCH=SCRATCH, BLOCK_E=block_e,
    )  # fmt: skip
    launch(
        delta.delta_norm, (s.n, rows), out, x, None, layer.norm, y, rows, X=s.x, N=s.n, E=s.e, PLANES=0, EPS=EPS
    )  # fmt: skip
    return y, out


any_dtype = st.sampled_from(ALL_DTYPES)


@given(
    sizes(), any_dtype, any_dtype, st.integers(0, 6), st.integers(1, 6), st.integers(0, 2), st.sampled_from([16, 32]),
    loudness, st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=15)
def test_a_chunk_is_the_convolution_and_delta_rule_of_the_reference(
    s, dtype, weights, start, live, padding, block_e, loudness, seed
):
    slots, positions = bucket(start, live, padding)
    layer = Layer(s, dtype, weights, {SLOT: start}, seed, loudness)
    x, value, hidden = layer.rows(slots != SCRATCH)
    expected = layer.reference(value, hidden, slots, positions)
    y, out = prefill(layer, x, hidden, slots, positions, min(block_e, s.e))
    layer.check(y, expected, slots)
    assert not out[live:].any()  # zero, not what an earlier chunk left


@given(
    any_dtype, st.integers(2, 4), st.integers(0, 5), st.lists(st.integers(1, 4), min_size=2, max_size=3),
    st.integers(0, 3), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=10)
def test_a_prompt_gives_the_same_bits_wherever_it_is_cut_and_in_buckets_of_any_size(
    dtype, taps, start, pieces, padding, seed
):
    s = Sizes(keys=1, shared=1, d=16, e=16, w=taps, h=20)
    layer = Layer(s, dtype, dtype, {SLOT: start}, seed)
    before, total = layer.state(), sum(pieces)
    slots, positions = bucket(start, total, 0)
    x, _, hidden = layer.rows(slots != SCRATCH)
    y, _ = prefill(layer, x, hidden, slots, positions)
    ring, memory = layer.state()

    layer.restore(before)
    done = 0
    for piece in pieces:
        slots, positions = bucket(start + done, piece, padding)
        rows = np.arange(piece + padding)
        chunk, chunk_hidden = nans((len(rows), s.x), dtype), nans((len(rows), s.h), dtype)
        chunk[:piece], chunk_hidden[:piece] = x[done : done + piece], hidden[done : done + piece]
        part, _ = prefill(layer, chunk, chunk_hidden, slots, positions)
        assert part[:piece].tobytes() == y[done : done + piece].tobytes()
        done += piece
    assert layer.ring.tobytes() == ring.tobytes()
    assert layer.memory.tobytes() == memory.tobytes()


def test_live_rows_are_counted_beyond_a_block_of_slots():
    """The scan counts them 128 at a time."""
    s = Sizes(keys=1, shared=1, d=16, e=16, w=2, h=8)
    layer = Layer(s, FLOAT32, FLOAT32, {SLOT: 1}, 5)
    slots, positions = bucket(1, 130, 2)
    random, rows = np.random.default_rng(5), len(slots)
    u = random.standard_normal((rows, s.c)).astype(np.float32)
    gates, out = np.full((rows, 2), 0.5, np.float32), nans((rows, s.n * s.e), FLOAT32)
    launch(
        delta_prefill.delta_scan, (1, 1), u, gates, slots, positions, layer.memory, out, rows, C=s.c, N=1, KEYS=1, D=16,
        E=16, SCRATCH=SCRATCH, BLOCK_E=16,
    )  # fmt: skip
    assert out[:130].any(axis=1).all()
    assert not np.isnan(out[:130]).any()
    assert not out[130:].any()


@pytest.mark.parametrize("a", [-40.0, -15.0, -7.5, -1.0, -1e-3, 0.0, 1e-3, 2.0, 30.0, 80.0])
def test_the_decay_is_exact_for_strong_and_for_hardly_any_forgetting(a):
    """softplus(a) spans many orders of magnitude. a_log brings the exponent of the decay near 1, so that a relative
    error of softplus shows as one of the decay; float64 and log1p are what it is held to."""
    layer = Layer(Sizes(keys=1, shared=1, d=16, e=16, w=2, h=1), FLOAT32, FLOAT32, {}, 0)
    softplus = np.logaddexp(0.0, np.float64(np.float32(a)))
    layer.ba[:, 0], layer.dt_bias[0], layer.a_log[0] = (a, a), 0.0, -np.log(softplus)
    decay, beta = gates_of(layer, np.ones((1, 1), np.float32))[0]
    np.testing.assert_allclose(decay, np.exp(-np.exp(np.float64(layer.a_log[0])) * softplus), rtol=5e-7)
    np.testing.assert_allclose(beta, 1 / (1 + np.exp(-np.float64(np.float32(a)))), rtol=5e-7)


def test_gates_agree_with_a_product_in_double_precision():
    layer = Layer(Sizes(keys=2, shared=2, d=16, e=16, w=2, h=37), DTYPES["bfloat16"], DTYPES["float16"], {}, 1)
    _, _, hidden = layer.rows(np.ones(3, bool))
    b, a = np.split(hidden.astype(np.float64) @ layer.ba.astype(np.float64).T, 2, axis=1)
    decay = np.exp(-np.exp(layer.a_log.astype(np.float64)) * np.logaddexp(0, a + layer.dt_bias))
    np.testing.assert_allclose(gates_of(layer, hidden), np.hstack([decay, 1 / (1 + np.exp(-b))]), rtol=1e-5)
