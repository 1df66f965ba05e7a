"""The kernel that norms, rotates and caches, against the reference instruction."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_launch import DTYPES, assert_rounded_once, launch, linear_value, nans, normal
from qpack_packager.cuda.kernels.rope import rope_kv_write
from qpack_runtime.reference import mixers

EPS, CONTEXT, SLOTS = 1e-6, 6, 3
SCRATCH = SLOTS
dtypes = st.sampled_from(sorted(DTYPES)).map(DTYPES.get)


def rotations(rng, half: int) -> np.ndarray:
    angles = rng.uniform(0, 2 * np.pi, (CONTEXT, half))
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def run(x, bias, rope, norms, rows, heads: int, groups: int, dim: int, planes: int, unit: bool, dtype):
    """The cache and q, all of it NaN where the kernel has not written."""
    slots, positions = (np.array(part, np.int32) for part in zip(*rows, strict=True))
    k, v = (nans((SLOTS * CONTEXT + 1, groups, dim), dtype) for _ in "kv")
    q = nans((len(rows), heads, dim), dtype)
    launch(
        rope_kv_write, (heads + 2 * groups, len(rows)), x, bias, rope, *norms, slots, positions, k, v, q, len(rows),
        X=x.shape[-1], A=heads, G=groups, D=dim, F=rope.shape[2], CONTEXT=CONTEXT, SCRATCH=SCRATCH, PLANES=planes,
        EPS=EPS, UNIT=unit,
    )  # fmt: skip
    return SimpleNamespace(q=q, k=k, v=v)


def wanted(x, rope, norms, rows, like, unit: bool):
    """The same by the reference, q and the cache in float32."""
    out = SimpleNamespace(**{name: nans(array.shape, np.float32) for name, array in vars(like).items()})
    slots, positions = (np.array(part, np.int32) for part in zip(*rows, strict=True))
    mixers.rope_kv_write(
        x, rope, slots, positions, out.k, out.v, out.q, context=CONTEXT, eps=EPS, unit_offset=unit, q_norm=norms[0],
        k_norm=norms[1],
    )  # fmt: skip
    return out


rows_of_slots = st.lists(st.integers(0, SLOTS), min_size=1, max_size=4, unique=True).flatmap(
    lambda slots: st.tuples(*[st.tuples(st.just(s), st.integers(0, 0 if s == SCRATCH else CONTEXT - 1)) for s in slots])
)


@settings(max_examples=30)
@given(
    rows=rows_of_slots, groups=st.integers(1, 2), share=st.integers(1, 3), dim=st.sampled_from([16, 32]),
    half=st.sampled_from([1, 3, 4, 8]), gated=st.booleans(), planes=st.integers(0, 4), with_bias=st.booleans(),
    normed=st.booleans(), unit=st.booleans(), dtype=dtypes, q_dtype=dtypes, k_dtype=dtypes, seed=st.integers(0, 99),
)  # fmt: skip
def test_q_and_the_cache_are_the_reference_rounded_once(
    rows, groups, share, dim, half, gated, planes, with_bias, normed, unit, dtype, q_dtype, k_dtype, seed
):
    rng = np.random.default_rng(seed)
    heads = groups * share
    columns = (heads * (1 + gated) + 2 * groups) * dim
    bias = normal(rng, columns, dtype) if planes and with_bias else None
    held, x = linear_value(rng, len(rows), columns, planes, dtype, bias)
    rope = rotations(rng, half)
    norms = (normal(rng, dim, q_dtype), normal(rng, dim, k_dtype)) if normed else (None, None)
    actual = run(held, bias, rope, norms, rows, heads, groups, dim, planes, unit, dtype)
    exact = wanted(x, rope, norms, rows, actual, unit)
    assert_rounded_once(actual.q, exact.q)
    lines = [slot * CONTEXT + position for slot, position in rows if slot != SCRATCH]
    for name in "kv":
        cache = getattr(actual, name)
        if lines:
            assert_rounded_once(cache[lines], getattr(exact, name)[lines])
        untouched = np.delete(cache, lines, axis=0)
        assert untouched.tobytes() == nans(untouched.shape, dtype).tobytes()


@pytest.mark.parametrize("planes", [0, 2])
def test_padding_full_of_nan_changes_no_cache_and_no_row(planes: int):
    rng = np.random.default_rng(1)
    dtype, rope = DTYPES["bfloat16"], rotations(rng, 8)
    norms = normal(rng, 16, dtype), normal(rng, 16, dtype)
    held, _ = linear_value(rng, 4, 64, planes, dtype)
    held[..., 1:, :] = np.nan
    padded = [(1, 4), (SCRATCH, 0), (SCRATCH, 0), (SCRATCH, 0)]
    among = run(held, None, rope, norms, padded, 2, 1, 16, planes, True, dtype)
    alone = run(held[..., :1, :].copy(), None, rope, norms, padded[:1], 2, 1, 16, planes, True, dtype)
    assert among.q[0].tobytes() == alone.q[0].tobytes()
    assert among.k.tobytes() == alone.k.tobytes()
    assert among.v.tobytes() == alone.v.tobytes()


def test_a_quarter_turn_exchanges_the_halves_and_leaves_the_rest():
    """cos 0, sin 1: (a, b) becomes (-b, a); columns from 2 * F on are not rotated, whatever they hold."""
    x = np.arange(48, dtype=np.float32)[None]
    x[0, 8] = np.inf
    rope = np.zeros((CONTEXT, 2, 4), np.float32)
    rope[:, 1] = 1
    out = run(x, None, rope, (None, None), [(0, 2)], 1, 1, 16, 0, False, np.dtype(np.float32))
    assert out.q[0, 0].tolist() == [-4, -5, -6, -7, 0, 1, 2, 3, np.inf, *range(9, 16)]
    assert out.k[2, 0].tolist() == [-20, -21, -22, -23, 16, 17, 18, 19, *range(24, 32)]
    assert out.v[2, 0].tolist() == list(range(32, 48))
