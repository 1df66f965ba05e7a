"""The matrix products of the CUDA target, against products that are exact and against the reference instructions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime import interpreter as ti

from bundles import ASSETS
from kernel_launch import DTYPES, assert_rounded_once, launch, nans, normal
from qpack_packager.cuda.kernels.linear import linear, linear_int8
from qpack_packager.cuda.kernels.linear_int4 import linear_int4_decode, linear_int4_prefill
from qpack_packager.quantize.marlin import pack, permute_scales
from qpack_runtime.reference import instructions, int8
from qpack_runtime.reference.marlin import dequantize

GOLDEN = np.load(ASSETS / "marlin.npz")
CASES = [name.removeprefix("codes_") for name in GOLDEN if name.startswith("codes_")]
FLOAT32, BFLOAT16, FLOAT16 = (DTYPES[name] for name in ("float32", "bfloat16", "float16"))

dtypes = st.sampled_from([FLOAT16, BFLOAT16, FLOAT32])
widths = st.one_of(st.integers(1, 2).map(lambda blocks: 64 * blocks), st.integers(1, 128), st.just(256))
depths = st.one_of(st.integers(1, 3).map(lambda groups: 128 * groups), st.integers(1, 300))
seeds = st.integers(0, 99)


class Int4(NamedTuple):
    q: np.ndarray  # int32 [K' / 16, 2 * N']
    scale: np.ndarray  # [K' / 128, N'], NaN for the padding columns
    weight: np.ndarray  # float32 [K, N], by the reference
    zero: np.ndarray | None = None  # int8 [K' / 128, N']


def int4(
    rng: np.random.Generator, k: int, n: int, scale: np.ndarray, codes: np.ndarray | None = None, zeros: bool = False
) -> Int4:
    """Padding is random too: nothing may come of it."""
    deep, wide = -(-k // 128) * 128, -(-n // 64) * 64
    codes = rng.integers(0, 16, (deep, wide)).astype(np.uint8) if codes is None else codes
    q = pack(codes)
    poisoned = permute_scales(np.where(np.arange(wide) < n, scale, np.array(np.nan, scale.dtype)))
    zero = permute_scales(rng.integers(0, 17, scale.shape).astype(np.int8)) if zeros else None
    return Int4(q, poisoned, dequantize(q, permute_scales(scale), zero)[:k, :n], zero)


def signed_powers(rng: np.random.Generator, k: int, n: int) -> np.ndarray:
    """Scales with which float32 sums of whole numbers stay exact."""
    shape = -(-k // 128), -(-n // 64) * 64
    return (rng.choice([-1, 1], shape) * 2.0 ** rng.integers(-4, 3, shape)).astype(BFLOAT16)


def whole(rng: np.random.Generator, *shape: int, dtype: np.dtype = FLOAT32) -> np.ndarray:
    return rng.integers(-8, 9, shape).astype(dtype)


def decode(x, weights: Int4, planes: int, tile: int, mma: bool = True, rows: int | None = None) -> np.ndarray:
    rows, (k, n) = rows or len(x), weights.weight.shape
    y = nans((planes, rows, n), np.float32)
    grid = weights.q.shape[1] // 2 // tile, planes, -(-rows // 8)
    sizes: dict[str, Any] = {"K": k, "N": n, "PLANES": planes, "TILE": tile, "MMA": mma}
    launch(linear_int4_decode, grid, x, weights.q, weights.scale, weights.zero, y, rows, **sizes)
    return y


def prefill(x, weights: Int4, bias, tile_m: int = 16, tile_n: int = 64, mma: bool = True, rows: int | None = None):
    rows, (k, n) = rows or len(x), weights.weight.shape
    y = nans((rows, n), x.dtype)
    grid = weights.q.shape[1] // 2 // tile_n, -(-rows // tile_m)
    sizes: dict[str, Any] = {"K": k, "N": n, "TILE_M": tile_m, "TILE_N": tile_n, "MMA": mma}
    launch(linear_int4_prefill, grid, x, weights.q, weights.scale, weights.zero, bias, y, rows, **sizes)
    return y


def dense(x, weight, bias, dtype, tile: int = 64, block_k: int = 64, mma: bool = True, rows: int | None = None):
    rows, (n, k) = rows or len(x), weight.shape
    y = nans((rows, n), dtype)
    grid = -(-n // tile), -(-rows // 8)
    launch(linear, grid, x, weight, bias, y, rows, K=k, N=n, TILE=tile, BLOCK_K=block_k, MMA=mma)
    return y


class Int8(NamedTuple):
    q: np.ndarray  # int8 [N, K']
    scale: np.ndarray  # [N, K' / 128]
    weight: np.ndarray  # float32 [N, K], by the reference


def int8_weights(rng: np.random.Generator, k: int, n: int, scale: np.ndarray) -> Int8:
    """The padding of K is random too: nothing may come of it."""
    q = rng.integers(-127, 128, (n, -(-k // 128) * 128)).astype(np.int8)
    return Int8(q, scale, int8.dequantize(q, scale)[:, :k])


def eight_bits(x, weights: Int8, dtype=FLOAT32, tile: int = 64, mma: bool = True, bias=None, tile_m: int = 8):
    rows, (n, k) = len(x), weights.weight.shape
    y = nans((rows, n), dtype)
    grid = -(-n // tile), -(-rows // tile_m)
    sizes: dict[str, Any] = {"K": k, "N": n, "TILE_M": tile_m, "TILE": tile, "MMA": mma}
    launch(linear_int8, grid, x, weights.q, weights.scale, bias, y, rows, **sizes)
    return y


def some_tile(weights: Int4, data: st.DataObject) -> int:
    columns = weights.q.shape[1] // 2
    return data.draw(st.sampled_from([tile for tile in (256, 128, 64) if columns % tile == 0]))


@settings(max_examples=20)
@given(
    rows=st.integers(1, 17), k=depths, n=widths, planes=st.integers(1, 4), dtype=dtypes, mma=st.booleans(),
    zeros=st.booleans(), seed=seeds, data=st.data(),
)  # fmt: skip
def test_the_planes_of_decode_add_up_to_the_product_exactly(rows, k, n, planes, dtype, mma, zeros, seed, data):
    rng = np.random.default_rng(seed)
    weights = int4(rng, k, n, signed_powers(rng, k, n), zeros=zeros)
    x = whole(rng, rows, k, dtype=dtype)
    y = decode(x, weights, planes, some_tile(weights, data), mma)
    assert np.array_equal(y.astype(np.float64).sum(0), x.astype(np.float64) @ weights.weight)


@settings(max_examples=15)
@given(
    rows=st.integers(1, 33), k=depths, n=widths, tile_m=st.sampled_from([8, 16, 32]), dtype=dtypes, mma=st.booleans(),
    with_bias=st.booleans(), zeros=st.booleans(), seed=seeds, data=st.data(),
)  # fmt: skip
def test_prefill_is_the_exact_product_and_bias_rounded_once(
    rows, k, n, tile_m, dtype, mma, with_bias, zeros, seed, data
):
    rng = np.random.default_rng(seed)
    weights = int4(rng, k, n, signed_powers(rng, k, n), zeros=zeros)
    x = whole(rng, rows, k, dtype=dtype)
    bias = whole(rng, n, dtype=BFLOAT16) if with_bias else None
    wanted = x.astype(np.float64) @ weights.weight
    if bias is not None:
        wanted += bias.astype(np.float64)
    y = prefill(x, weights, bias, tile_m, some_tile(weights, data), mma)
    assert np.array_equal(y, wanted.astype(np.float32).astype(dtype))


@settings(max_examples=25)
@given(
    rows=st.integers(1, 17), k=st.integers(1, 200), n=st.integers(1, 150), dtypes=st.tuples(dtypes, dtypes, dtypes),
    tile=st.sampled_from([32, 64, 128]), block_k=st.sampled_from([32, 64, 128]), mma=st.booleans(),
    with_bias=st.booleans(), seed=seeds,
)  # fmt: skip
def test_the_dense_product_is_exact_and_rounded_once(rows, k, n, dtypes, tile, block_k, mma, with_bias, seed):
    rng = np.random.default_rng(seed)
    x, weight = whole(rng, rows, k, dtype=dtypes[0]), whole(rng, n, k, dtype=dtypes[1])
    bias = whole(rng, n, dtype=FLOAT16) if with_bias else None
    wanted = x.astype(np.float64) @ weight.astype(np.float64).T
    if bias is not None:
        wanted += bias.astype(np.float64)
    y = dense(x, weight, bias, dtypes[2], tile, block_k, mma)
    assert np.array_equal(y, wanted.astype(np.float32).astype(dtypes[2]))


@settings(max_examples=25)
@given(
    rows=st.integers(1, 33), k=depths, n=st.integers(1, 150), x_dtype=dtypes, y_dtype=dtypes,
    tile=st.sampled_from([32, 64]), tile_m=st.sampled_from([8, 32]), mma=st.booleans(), with_bias=st.booleans(),
    scale_dtype=dtypes, seed=seeds,
)  # fmt: skip
def test_the_int8_product_is_exact_and_rounded_once(
    rows, k, n, x_dtype, y_dtype, tile, tile_m, mma, with_bias, scale_dtype, seed
):
    """Scales are powers of two from 1/4 to 2, so that float32 sums are exact."""
    rng = np.random.default_rng(seed)
    powers = 2.0 ** rng.integers(-2, 2, (n, -(-k // 128)))
    weights = int8_weights(rng, k, n, powers.astype(scale_dtype))
    x = whole(rng, rows, k, dtype=x_dtype)
    bias = whole(rng, n, dtype=BFLOAT16) if with_bias else None
    wanted = x.astype(np.float64) @ weights.weight.astype(np.float64).T
    if bias is not None:
        wanted += bias.astype(np.float64)
    y = eight_bits(x, weights, y_dtype, tile, mma, bias, tile_m)
    assert np.array_equal(y, wanted.astype(np.float32).astype(y_dtype))


@pytest.mark.parametrize("mma", [True, False])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=str)
def test_every_int8_code_is_exact_in_every_dtype(dtype: np.dtype, mma: bool):
    codes = np.resize(np.arange(-127, 128), (64, 128)).astype(np.int8)
    weights = Int8(codes, np.ones((64, 1), BFLOAT16), codes.astype(np.float32))
    for first in range(0, 128, 8 if mma else 64):
        x = np.eye(128, dtype=np.float32)[first : first + 8].astype(dtype)
        assert np.array_equal(eight_bits(x, weights, mma=mma), codes[:, first : first + 8].T.astype(np.float32))


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_published_vectors_give_whole_sums_times_their_scale(case: str, dtype: np.dtype):
    """One group to a plane, so that there is one rounding at most: none, as 13 bits times 11 fit into 24."""
    codes, scales = GOLDEN[f"codes_{case}"], GOLDEN[f"scales_{case}"]
    groups = len(scales)
    x = whole(np.random.default_rng(0), 3, 128 * groups, dtype=dtype)
    golden = Int4(GOLDEN[f"packed_{case}"], GOLDEN[f"scales_permuted_{case}"], np.empty(codes.shape))
    y = decode(x, golden, groups, 64)
    for group in range(groups):
        along = slice(128 * group, 128 * group + 128)
        sums = x[:, along].astype(np.int64) @ (codes[along].astype(np.int64) - 8)
        assert np.array_equal(y[group], sums * scales[group].astype(np.float64))


@pytest.mark.parametrize("mma", [True, False])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=str)
def test_every_code_in_every_place_of_a_word_is_code_minus_8(dtype: np.dtype, mma: bool):
    """Rows of x pick rows of W. In 16 lines every word of the layout's 16 x 64 block holds every code once."""
    k = 16 * np.arange(16)[:, None] + np.arange(16)
    codes = ((np.arange(256) // 16)[:, None] + np.arange(64) + np.arange(256)[:, None]) % 16
    weights = int4(np.random.default_rng(0), 256, 64, np.ones((2, 64), BFLOAT16), codes.astype(np.uint8))
    for rows in k[:: 3 if mma else 15]:
        x = np.eye(256, dtype=np.float32)[rows].astype(dtype)
        assert np.array_equal(decode(x, weights, 1, 64, mma)[0], codes[rows] - 8.0)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=str)
def test_every_zero_point_of_every_column_is_subtracted_from_every_code(dtype: np.dtype):
    """16 lines hold every code in every column, 17 groups every zero point; a plane is a group, of which each row of x
    picks a line."""
    k, n = 17 * 128, 64
    codes = (np.arange(k)[:, None] + np.arange(n)) % 16
    zeros = (np.arange(17)[:, None] + np.arange(n)) % 17
    weights = int4(np.random.default_rng(0), k, n, np.ones((17, n), BFLOAT16), codes.astype(np.uint8))
    weights = weights._replace(zero=permute_scales(zeros.astype(np.int8)))
    for first in (0, 8):
        lines = 128 * np.arange(17)[:, None] + first + 17 * np.arange(8)  # one of each residue of 16
        x = np.zeros((8, k), dtype)
        np.put_along_axis(x, lines.T, 1, axis=1)
        assert np.array_equal(decode(x, weights, 17, n), codes[lines] - zeros[:, None].astype(np.float32))


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=str)
def test_zero_points_of_8_give_the_bits_of_the_usual_form(dtype: np.dtype):
    rng = np.random.default_rng(0)
    usual = int4(rng, 300, 100, normal(rng, (3, 128), BFLOAT16, 0.1))
    same = usual._replace(zero=np.full((3, 128), 8, np.int8))
    x, bias = normal(rng, (9, 300), dtype), normal(rng, 100)
    assert decode(x, same, 2, 128).tobytes() == decode(x, usual, 2, 128).tobytes()
    assert prefill(x, same, bias).tobytes() == prefill(x, usual, bias).tobytes()


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=str)
def test_a_float16_scale_that_no_bfloat16_holds_is_exact(dtype: np.dtype):
    """One group to a plane: 13 bits times 11 fit into 24."""
    rng = np.random.default_rng(0)
    scale = ((1 + 2.0**-10) * 2.0 ** rng.integers(-6, 3, (2, 64))).astype(FLOAT16)
    weights = int4(rng, 256, 64, scale, zeros=True)
    x = whole(rng, 3, 256, dtype=dtype)
    exact = x.astype(np.float64).reshape(3, 2, 128).swapaxes(0, 1) @ weights.weight.astype(np.float64).reshape(
        2, 128, 64
    )
    assert np.array_equal(decode(x, weights, 2, 64), exact)


@settings(max_examples=8)
@given(rows=st.integers(1, 9), dtype=dtypes, scale=dtypes, seed=seeds)
def test_any_numbers_give_what_the_reference_instructions_give(rows, dtype, scale, seed):
    rng = np.random.default_rng(seed)
    k, n = 300, 100
    weights = int4(rng, k, n, normal(rng, (3, 128), scale, 0.1), zeros=seed % 2 == 0)
    x, bias, wanted = normal(rng, (rows, k), dtype), normal(rng, n, scale), nans((rows, n), np.float32)
    instructions.linear_int4(x, weights.weight, weights.scale, wanted)
    total = decode(x, weights, 2, 128).sum(0, dtype=np.float32)
    assert_rounded_once(total, wanted)
    instructions.linear_int4(x, weights.weight, weights.scale, wanted, bias=bias)
    assert_rounded_once(prefill(x, weights, bias), wanted)
    weight = normal(rng, (n, k), scale)
    instructions.linear(x, weight.astype(np.float32), wanted, bias=bias)
    assert_rounded_once(dense(x, weight, bias, dtype), wanted)
    eight = int8_weights(rng, k, n, np.abs(normal(rng, (n, 3), scale, 0.01)))
    instructions.linear_int8(x, eight.weight, eight.scale, wanted, bias=bias)
    assert_rounded_once(eight_bits(x, eight, dtype, bias=bias), wanted)


@settings(max_examples=6)
@given(rows=st.integers(2, 10), dtype=dtypes, mma=st.booleans(), seed=seeds)
def test_a_row_alone_gives_the_bits_that_it_gives_between_rows_of_nan(rows, dtype, mma, seed):
    rng = np.random.default_rng(seed)
    weights, weight = int4(rng, 256, 64, normal(rng, (2, 64), BFLOAT16)), normal(rng, (64, 256), BFLOAT16)
    imported = int4(rng, 256, 64, normal(rng, (2, 64), FLOAT16), zeros=True)
    eight = int8_weights(rng, 256, 64, normal(rng, (64, 2), BFLOAT16))
    x, row = normal(rng, (rows, 256), dtype), seed % rows
    among = np.full_like(x, np.nan)
    among[row] = x[row]
    for multiply in (
        lambda x: decode(x, weights, 2, 64, mma).swapaxes(0, 1),
        lambda x: prefill(x, weights, None, mma=mma),
        lambda x: decode(x, imported, 2, 64, mma).swapaxes(0, 1),
        lambda x: dense(x, weight, None, dtype, mma=mma),
        lambda x: eight_bits(x, eight, mma=mma),
        lambda x: eight_bits(x, eight, mma=mma, tile_m=32),
    ):
        alone = multiply(x[row : row + 1])[0].tobytes()
        assert multiply(x)[row].tobytes() == alone
        assert multiply(among)[row].tobytes() == alone


def test_a_plane_without_groups_is_zero():
    rng = np.random.default_rng(0)
    weights = int4(rng, 5 * 128, 64, signed_powers(rng, 5 * 128, 64))
    y = decode(whole(rng, 2, 5 * 128, dtype=BFLOAT16), weights, 4, 64)  # two groups each: 2, 2, 1, 0
    assert not y[3].any()
    assert y[:3].any((1, 2)).all()


def test_padding_columns_are_neither_stored_nor_do_they_reach_others():
    rng = np.random.default_rng(0)
    weights = int4(rng, 128, 65, signed_powers(rng, 128, 65))
    x = whole(rng, 9, 128, dtype=FLOAT16)
    assert np.array_equal(decode(x, weights, 1, 128)[0], x.astype(np.float32) @ weights.weight)
    assert np.array_equal(prefill(x, weights, None, 8, 128), (x.astype(np.float32) @ weights.weight).astype(FLOAT16))


@contextmanager
def loads() -> Iterator[list[np.ndarray]]:
    """The addresses that kernels load from meanwhile."""
    addresses: list[np.ndarray] = []
    interpreter: Any = ti._interpreter
    load = interpreter.load

    def spy(pointers, mask, other, dtype):
        addresses.append(np.unique(pointers[mask]))
        return load(pointers, mask, other, dtype)

    interpreter.load = spy
    try:
        yield addresses
    finally:
        interpreter.load = load


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 17])
def test_nothing_is_loaded_from_x_behind_its_last_row_and_column(rows: int):
    """33 rows of memory, 200 columns: only the first `rows` belong to the bucket."""
    rng = np.random.default_rng(0)
    k = 200
    weights, weight = int4(rng, k, 64, signed_powers(rng, k, 64)), torch.zeros(64, k, dtype=torch.float16)
    memory = torch.zeros(33 * k, dtype=torch.float16)
    q, scale = torch.from_numpy(weights.q), torch.from_numpy(weights.scale.astype(np.float32))
    y = torch.zeros(rows * 64)
    tiles = -(-rows // 8)
    eight, steps = torch.zeros(64, 256, dtype=torch.int8), torch.zeros(64, 2)
    kernels: tuple[Any, ...] = linear_int4_decode, linear_int4_prefill, linear, linear_int8
    with loads() as addresses:
        kernels[0][1, 1, tiles](memory, q, scale, None, y, rows, K=k, N=64, PLANES=1, TILE=64, MMA=True)
        kernels[1][1, tiles](memory, q, scale, None, None, y, rows, K=k, N=64, TILE_M=8, TILE_N=64, MMA=True)
        kernels[2][1, tiles](memory, weight, None, y, rows, K=k, N=64, TILE=64, BLOCK_K=128, MMA=True)
        kernels[3][1, tiles](memory, eight, steps, None, y, rows, K=k, N=64, TILE_M=8, TILE=64, MMA=True)
    begin, end = memory.data_ptr(), memory.data_ptr() + memory.nbytes
    touched = np.unique(np.concatenate(addresses))
    touched = touched[(touched >= begin) & (touched < end)]
    assert np.array_equal(touched, begin + 2 * np.arange(rows * k))
