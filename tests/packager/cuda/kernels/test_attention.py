"""Attention over the cache, of decode rows and of prompts, against the reference instruction.

The cache is NaN wherever a slot has not written, and so are the outputs: a value that is used without having been
written shows.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_launch import DTYPES, UNIT_ROUNDOFF, assert_rounded_once, launch, linear_value, nans, normal
from qpack_packager.cuda.kernels.attention import attention_combine, attention_split
from qpack_packager.cuda.kernels.attention_prefill import attention_prefill
from qpack_runtime.reference import mixers

CONTEXT, SLOTS, SPLIT, BLOCK = 192, 3, 16, 16
SCRATCH, SPLITS = SLOTS, CONTEXT // SPLIT
dtypes = st.sampled_from(sorted(DTYPES)).map(DTYPES.get)


@dataclass(frozen=True)
class Shape:
    groups: int
    share: int  # query heads of a key head
    dim: int
    dtype: np.dtype
    gated: bool = False
    planes: int = 0

    @property
    def heads(self) -> int:
        return self.groups * self.share

    @property
    def columns(self) -> int:
        """Of the linear that gives q | k | v | gate."""
        return (self.heads * (1 + self.gated) + 2 * self.groups) * self.dim

    @property
    def slack(self) -> float:
        """Weights may be rounded to a cache of 16 bits; sums run in another order."""
        return 4e-6 if self.dtype == np.float32 else 4 * UNIT_ROUNDOFF[self.dtype]

    def cache(self, rng, lengths) -> tuple[np.ndarray, np.ndarray]:
        k, v = (nans((SLOTS * CONTEXT + 1, self.groups, self.dim), self.dtype) for _ in "kv")
        for slot, length in lengths.items():
            for array in (k, v):
                lines = slice(slot * CONTEXT, slot * CONTEXT + length)
                array[lines] = normal(rng, (length, self.groups, self.dim), self.dtype)
        return k, v


def reference(q, slots, positions, k, v, gate, shape: Shape) -> np.ndarray:
    y = nans((len(q), shape.heads * shape.dim), np.float32)
    mixers.attention(q, slots, positions, k, v, y, context=CONTEXT, gate=gate)
    return y


def decode(q, k, v, slots, positions, gate, bias, shape: Shape, splits: int | None = None) -> np.ndarray:
    """y; `splits` are those of the bucket, by default as few as the positions need."""
    rows = len(slots)
    slots, positions = np.array(slots, np.int32), np.array(positions, np.int32)
    partial = nans((rows, shape.heads, SPLITS, shape.dim), np.float32)
    stats = nans((rows, shape.heads, SPLITS, 2), np.float32)
    y = nans((rows, shape.heads * shape.dim), shape.dtype)
    launch(
        attention_split, (shape.groups, splits or positions.max() // SPLIT + 1, rows), q, k, v, slots, positions,
        partial, stats, A=shape.heads, G=shape.groups, D=shape.dim, CONTEXT=CONTEXT, SCRATCH=SCRATCH, SPLIT=SPLIT,
        BLOCK=BLOCK, HEADS=max(8, 1 << (shape.share - 1).bit_length()), SPLITS=SPLITS,
    )  # fmt: skip
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        first = 0 if slot == SCRATCH else position // SPLIT + 1
        assert np.isnan(partial[row, :, first:]).all(), "a split behind the position was written"
        assert np.isnan(stats[row, :, first:]).all()
    launch(
        attention_combine, (shape.heads, rows), partial, stats, gate, bias, positions, y, rows, A=shape.heads,
        D=shape.dim, X=shape.columns, SPLIT=SPLIT, SPLITS=SPLITS, PLANES=shape.planes,
    )  # fmt: skip
    return y


def prefill(q, k, v, slots, positions, gate, shape: Shape, tile: int = 16, block: int = BLOCK) -> np.ndarray:
    y = nans((len(q), shape.heads * shape.dim), shape.dtype)
    launch(
        attention_prefill, (shape.heads, -(-len(q) // tile)), q, k, v, np.array(slots, np.int32),
        np.array(positions, np.int32), gate, y, len(q), A=shape.heads, G=shape.groups, D=shape.dim, CONTEXT=CONTEXT,
        X=shape.columns, SCRATCH=SCRATCH, TILE_M=tile, BLOCK=block,
    )  # fmt: skip
    return y


decode_shapes = st.builds(
    Shape, groups=st.integers(1, 2), share=st.integers(1, 8), dim=st.sampled_from([16, 32]), dtype=dtypes,
    gated=st.booleans(), planes=st.integers(0, 4),
)  # fmt: skip
positions_of_slots = st.dictionaries(
    st.integers(0, SLOTS - 1), st.one_of(st.integers(0, 40), st.sampled_from([15, 16, 31, 127, 128, 150])), min_size=1
)


@settings(max_examples=25)
@given(shape=decode_shapes, rows=positions_of_slots, with_bias=st.booleans(), seed=st.integers(0, 99))
def test_decode_rows_are_the_reference_rounded_once(shape: Shape, rows, with_bias, seed):
    rng = np.random.default_rng(seed)
    slots, positions = list(rows), list(rows.values())
    k, v = shape.cache(rng, {slot: position + 1 for slot, position in rows.items()})
    q = normal(rng, (len(rows), shape.heads, shape.dim), shape.dtype)
    bias = normal(rng, shape.columns, shape.dtype) if with_bias and shape.gated and shape.planes else None
    held, gate = linear_value(rng, len(rows), shape.columns, shape.planes, shape.dtype, bias)
    y = decode(q, k, v, slots, positions, held if shape.gated else None, bias, shape)
    assert_rounded_once(y, reference(q, slots, positions, k, v, gate if shape.gated else None, shape), shape.slack)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_decode_row_gives_the_same_bits_in_every_bucket_beside_anyone(dtype: str):
    """Alone in the smallest bucket, and between NaN rows of padding and a longer neighbour in the largest."""
    shape = Shape(groups=2, share=3, dim=16, dtype=DTYPES[dtype], gated=True, planes=2)
    rng = np.random.default_rng(3)
    k, v = shape.cache(rng, {0: 38, 1: 151})
    q = normal(rng, (4, shape.heads, shape.dim), shape.dtype)
    held, _ = linear_value(rng, 4, shape.columns, 2, shape.dtype)
    alone = decode(q[2:3], k, v, [0], [37], held[:, 2:3].copy(), None, shape)
    q[[0, 3]] = held[:, [0, 3]] = np.nan
    among = decode(q, k, v, [SCRATCH, 1, 0, SCRATCH], [0, 150, 37, 0], held, None, shape, SPLITS)
    assert among[2].tobytes() == alone[0].tobytes()


def prompt(rng, shape: Shape, slot: int, start: int, length: int, rows: int):
    """A chunk of a prompt with its padding, the inputs of which are NaN; the cache as far as it is written."""
    k, v = shape.cache(rng, {slot: start + length})
    q, gate = nans((rows, shape.heads, shape.dim), shape.dtype), nans((rows, shape.columns), shape.dtype)
    q[:length] = normal(rng, (length, *q.shape[1:]), shape.dtype)
    gate[:length] = normal(rng, (length, shape.columns), shape.dtype)
    slots = [slot] * length + [SCRATCH] * (rows - length)
    positions = [*range(start, start + length), *[0] * (rows - length)]
    return q, k, v, slots, positions, gate if shape.gated else None


prefill_shapes = st.builds(
    Shape, groups=st.integers(1, 2), share=st.integers(1, 4), dim=st.sampled_from([16, 32]), dtype=dtypes,
    gated=st.booleans(),
)  # fmt: skip


@settings(max_examples=25)
@given(
    shape=prefill_shapes, slot=st.integers(0, SLOTS - 1), start=st.sampled_from([0, 1, 15, 16, 90]),
    length=st.integers(1, 40), padding=st.integers(0, 40), seed=st.integers(0, 99), block=st.sampled_from([16, 32]),
)  # fmt: skip
def test_prompt_rows_are_the_reference_rounded_once(shape: Shape, slot, start, length, padding, seed, block):
    arguments = prompt(np.random.default_rng(seed), shape, slot, start, length, length + padding)
    y = prefill(*arguments, shape, block=block)[:length]
    q, k, v, slots, positions, gate = arguments
    q, slots, positions = q[:length], slots[:length], positions[:length]
    assert_rounded_once(y, reference(q, slots, positions, k, v, gate, shape), shape.slack)


@settings(max_examples=12)
@given(dtype=dtypes, cuts=st.lists(st.integers(1, 36), max_size=3), padding=st.integers(0, 20), seed=st.integers(0, 99))
def test_a_prompt_gives_the_same_bits_however_it_is_cut(dtype, cuts, padding, seed):
    """When a chunk runs, the cache behind it is NaN, unlike in the run of the whole prompt."""
    shape = Shape(groups=1, share=2, dim=16, dtype=dtype, gated=True)
    q, k, v, slots, positions, gate = prompt(np.random.default_rng(seed), shape, 1, 0, 37, 37)
    assert gate is not None
    whole = prefill(q, k, v, slots, positions, gate, shape)
    bounds = sorted({0, *cuts, 37})
    for first, end in pairwise(bounds):
        rows = end - first + padding
        chunk = [nans((rows, *array.shape[1:]), dtype) for array in (q, gate)]
        for part, array in zip(chunk, (q, gate), strict=True):
            part[: end - first] = array[first:end]
        keys, values = k.copy(), v.copy()
        keys[CONTEXT + end :] = values[CONTEXT + end :] = np.nan
        seats = [1] * (end - first) + [SCRATCH] * padding
        places = [*range(first, end), *[0] * padding]
        y = prefill(chunk[0], keys, values, seats, places, chunk[1], shape)
        assert y[: end - first].tobytes() == whole[first:end].tobytes()


def test_tiles_of_padding_alone_are_left_as_they_are():
    shape = Shape(groups=1, share=1, dim=16, dtype=DTYPES["float32"])
    y = prefill(*prompt(np.random.default_rng(0), shape, 0, 3, 5, 40), shape)
    assert np.isfinite(y[:5]).all()
    assert np.isnan(y[16:]).all()


@pytest.mark.parametrize("tile", [16, 32])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_scores_far_apart_choose_one_value(tile: int, dtype: str):
    """Without the running maximum these exponents overflow: position 2 wins by e^100 and more over all others."""
    shape = Shape(groups=1, share=1, dim=16, dtype=DTYPES[dtype])
    q, k, v, slots, positions, _ = prompt(np.random.default_rng(0), shape, 0, 0, 20, 20)
    q[:], k[:20] = 32, -32
    k[2] = 32
    y = prefill(q, k, v, slots, positions, None, shape, tile)
    assert y[2:].tobytes() == np.repeat(v[2], 18, axis=0).tobytes()
    y = decode(q[:1], k, v, [0], [19], None, None, shape)
    assert y.tobytes() == v[2].tobytes()


def test_equal_scores_average_the_values():
    """By hand: keys of zero weigh positions 0 .. p alike, so row p is the mean of the first p + 1 values."""
    shape = Shape(groups=1, share=1, dim=16, dtype=DTYPES["float32"])
    q, k, v, slots, positions, _ = prompt(np.random.default_rng(0), shape, 0, 0, 40, 40)
    k[:40] = 0
    v[:40, 0] = np.arange(40, dtype=np.float32)[:, None]
    y = prefill(q, k, v, slots, positions, None, shape)
    assert np.allclose(y, np.arange(40)[:, None] / 2, rtol=1e-6)
    y = decode(q[:1], k, v, [0], [39], None, None, shape)
    assert np.allclose(y, 19.5, rtol=1e-6)
