"""The products with int4, int8 and dense weights against float64, on every code path; and a row's bits whatever is
beside it."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instruction import kernels, packed_int4, packed_int8, run_cpu
from qpack_packager.quantize import int8, marlin, rtn

GROUP = 128
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
HALF_STEP = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-11}  # relative, of a stored output

SHAPES = {
    "path": st.sampled_from(kernels().paths), "rows": st.integers(1, 14), "groups": st.integers(1, 3),
    "short": st.integers(0, 127), "tiles": st.integers(1, 3), "cut": st.integers(0, 63),
    "x_dtype": st.sampled_from(sorted(DTYPES)), "y_dtype": st.sampled_from(sorted(DTYPES)), "fast": st.booleans(),
    "threads": st.integers(1, 3), "seed": st.integers(0, 2**31),
}  # fmt: skip


def padded(weight: np.ndarray, k: int, n: int) -> np.ndarray:
    return np.pad(weight, ((0, n - weight.shape[0]), (0, k - weight.shape[1])))


def activations(rng: np.random.Generator, rows: int, k: int, dtype: str) -> np.ndarray:
    """Rows of very different sizes, one of zeros, with a few outliers."""
    x = rng.standard_normal((rows, k)) * 10.0 ** rng.integers(-3, 3, (rows, 1))
    x[rng.random((rows, k)) < 0.01] *= 20
    x[rng.integers(rows)] *= rng.random() < 0.8
    return x.astype(DTYPES[dtype])


def scales_like(made: np.ndarray, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """The bfloat16 scales moved to values that need the whole fraction of `dtype`."""
    return (made.astype(np.float64) * (1 + rng.random(made.shape) / 100)).astype(DTYPES[dtype])


def per_weight(values: np.ndarray) -> np.ndarray:
    """What each weight [N, K] has, of what each group [N, K/128] has, float64."""
    return np.repeat(values.astype(np.float64), GROUP, axis=1)


def check(op: str, x: np.ndarray, weight: np.ndarray, y: np.ndarray, bias: np.ndarray | None, fast: bool) -> None:
    """y [R, N] against x [R, K] @ weight^T [K, N] in float64, within what rounding can explain."""
    wide, w = x.astype(np.float64), weight.astype(np.float64)
    added = 0 if bias is None else bias.astype(np.float64)
    exact = wide @ w.T + added
    magnitude = np.abs(wide) @ np.abs(w.T) + np.abs(added)
    error = np.abs(y.astype(np.float64) - exact)
    allowed = magnitude * 2.0**-20 + np.abs(exact) * 2 * HALF_STEP[y.dtype.name] + 1e-7 * (y.dtype == np.float16)
    if fast and op != "linear":  # each activation is off by half a step of its group
        k = -(-x.shape[1] // GROUP) * GROUP
        groups = np.abs(padded(wide, k, len(x))).reshape(len(x), -1, GROUP).max(-1) / 254 * 1.001
        weights = np.abs(padded(w, k, len(w))).reshape(len(w), -1, GROUP).sum(-1)
        allowed = allowed + groups @ weights.T
    np.testing.assert_array_less(error, allowed + 1e-30)


@settings(max_examples=120)
@given(**SHAPES, with_bias=st.booleans(), scale_dtype=st.sampled_from(sorted(DTYPES)), with_zeros=st.booleans())
def test_int4_products_are_those_of_the_weights_that_the_codes_stand_for(
    path, rows, groups, short, tiles, cut, x_dtype, y_dtype, fast, threads, seed, with_bias, scale_dtype, with_zeros
):
    rng = np.random.default_rng(seed)
    k, n = max(1, groups * GROUP - short), max(1, 64 * tiles - cut)
    made = rtn.quantize(padded(rng.standard_normal((n, k)), -(-k // GROUP) * GROUP, 64 * tiles).astype(np.float32))
    scales = scales_like(made.scales, scale_dtype, rng)
    zeros = rng.integers(0, 17, scales.shape).astype(np.int8) if with_zeros else None
    weight = made.codes - per_weight(np.full(scales.shape, 8) if zeros is None else zeros)
    x, y = activations(rng, rows, k, x_dtype), np.zeros((rows, n), DTYPES[y_dtype])
    bias = rng.standard_normal(n).astype(DTYPES[x_dtype]) if with_bias else None
    operands = {"x": x, "y": y, **int4_packed(made.codes, scales, path, zeros), **optional(bias)}
    run_cpu("linear_int4", operands, path=path, fast=fast, threads=threads)
    check("linear_int4", x, (weight * per_weight(scales))[:n, :k], y, bias, fast)


@settings(max_examples=120)
@given(**SHAPES, with_bias=st.booleans(), scale_dtype=st.sampled_from(sorted(DTYPES)))
def test_int8_products_are_those_of_the_weights_that_the_codes_stand_for(
    path, rows, groups, short, tiles, cut, x_dtype, y_dtype, fast, threads, seed, with_bias, scale_dtype
):
    rng = np.random.default_rng(seed)
    k, n = max(1, groups * GROUP - short), max(1, 64 * tiles - cut)
    made = int8.quantize(padded(rng.standard_normal((n, k)), -(-k // GROUP) * GROUP, n).astype(np.float32))
    scales = scales_like(made.scales, scale_dtype, rng)
    x, y = activations(rng, rows, k, x_dtype), np.zeros((rows, n), DTYPES[y_dtype])
    bias = rng.standard_normal(n).astype(DTYPES[x_dtype]) if with_bias else None
    operands = {"x": x, "y": y, **packed_int8(made.codes, scales, path), **optional(bias)}
    run_cpu("linear_int8", operands, path=path, fast=fast, threads=threads)
    check("linear_int8", x, (made.codes * per_weight(scales))[:, :k], y, bias, fast)


@settings(max_examples=120)
@given(**SHAPES, with_bias=st.booleans(), w_dtype=st.sampled_from(sorted(DTYPES)))
def test_dense_products_are_those_of_the_weights(
    path, rows, groups, short, tiles, cut, x_dtype, y_dtype, fast, threads, seed, with_bias, w_dtype
):
    rng = np.random.default_rng(seed)
    k, n = max(1, groups * GROUP - short), max(1, 16 * tiles - cut)
    x, y = activations(rng, rows, k, x_dtype), np.zeros((rows, n), DTYPES[y_dtype])
    weight = rng.standard_normal((n, k)).astype(DTYPES[w_dtype])
    bias = rng.standard_normal(n).astype(DTYPES[w_dtype]) if with_bias else None
    operands = {"x": x, "weight": weight, "y": y, **optional(bias)}
    run_cpu("linear", operands, path=path, fast=fast, threads=threads)
    check("linear", x, weight, y, bias, fast)


@pytest.mark.parametrize("scale_dtype", DTYPES)
@pytest.mark.parametrize("path", kernels().paths)
def test_scales_and_zero_points_are_packed_without_loss(path: str, scale_dtype: str):
    """Into the order of pack.h: tile, group, output."""
    rng = np.random.default_rng(8)
    scales = rng.standard_normal((192, 3)).astype(DTYPES[scale_dtype])
    zeros = rng.integers(0, 17, (192, 3)).astype(np.int8)
    codes = rng.integers(0, 16, (192, 384)).astype(np.uint8)

    def in_order(values: np.ndarray) -> bytes:
        return np.ascontiguousarray(values.reshape(3, 64, 3).transpose(0, 2, 1)).tobytes()

    packed = int4_packed(codes, scales, path, zeros)
    assert packed["scale"].tobytes() == in_order(scales)
    assert packed["zero"].tobytes() == in_order(zeros)
    assert packed_int8(codes.view(np.int8), scales, path)["scale"].tobytes() == in_order(scales)


@pytest.mark.parametrize("zero", [0, 8, 15, 16])
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "exact"])
@pytest.mark.parametrize("path", kernels().paths)
def test_a_group_of_whole_activations_is_rounded_once(path: str, fast: bool, zero: int):
    """Activations up to 127 are their own codes, so that the product is a whole number times the scale: a float16 that
    no bfloat16 holds."""
    rng = np.random.default_rng(zero)
    codes, zeros = rng.integers(0, 16, (64, 128)), np.full((64, 1), zero)
    scales = ((1 + 2.0**-10) * 2.0 ** rng.integers(-6, 3, (64, 1))).astype(np.float16)
    assert (scales.astype(ml_dtypes.bfloat16).astype(np.float16) != scales).all()
    x = rng.integers(-127, 128, (5, 128)).astype(np.float32)
    x[:, 0] = 127
    y = np.zeros((5, 64), np.float32)
    operands = {"x": x, "y": y, **int4_packed(codes.astype(np.uint8), scales, path, zeros.astype(np.int8))}
    run_cpu("linear_int4", operands, path=path, fast=fast)
    exact = (x.astype(np.float64) @ (codes - zeros).T) * scales[:, 0].astype(np.float64)
    np.testing.assert_array_equal(y, exact.astype(np.float32))


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "exact"])
@pytest.mark.parametrize("path", kernels().paths)
def test_zero_points_of_8_and_scales_of_any_dtype_give_the_bits_of_the_usual_form(path: str, fast: bool):
    rng = np.random.default_rng(9)
    made = rtn.quantize(rng.standard_normal((128, 384)).astype(np.float32))
    x, eight = activations(rng, 9, 384, "bfloat16"), np.full(made.scales.shape, 8, np.int8)
    results = []
    for dtype, zeros in (("bfloat16", None), ("bfloat16", eight), ("float32", None), ("float32", eight)):
        scales = made.scales.astype(DTYPES[dtype])  # every bfloat16 is a float32
        y = np.zeros((9, 128), np.float32)
        run_cpu("linear_int4", {"x": x, "y": y, **int4_packed(made.codes, scales, path, zeros)}, path=path, fast=fast)
        results.append(y)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def optional(bias: np.ndarray | None) -> dict[str, np.ndarray]:
    return {} if bias is None else {"bias": bias}


def int4_packed(
    codes: np.ndarray, scales: np.ndarray, path: str, zeros: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """From codes [N, K], scales and zero points [N, K/128]."""
    stored = None if zeros is None else marlin.permute_scales(zeros.T.copy())
    return packed_int4(marlin.pack(codes.T.copy()), marlin.permute_scales(scales.T.copy()), path, stored)


def int4_operands(rng: np.random.Generator, n: int, k: int, path: str) -> dict[str, np.ndarray]:
    made = rtn.quantize(rng.standard_normal((n, k)).astype(np.float32))
    return int4_packed(made.codes, made.scales, path)


def imported_operands(rng: np.random.Generator, n: int, k: int, path: str) -> dict[str, np.ndarray]:
    made = rtn.quantize(rng.standard_normal((n, k)).astype(np.float32))
    zeros = rng.integers(0, 17, made.scales.shape, np.int8)
    return int4_packed(made.codes, made.scales.astype(np.float16), path, zeros)


def int8_operands(rng: np.random.Generator, n: int, k: int, path: str) -> dict[str, np.ndarray]:
    made = int8.quantize(rng.standard_normal((n, k)).astype(np.float32))
    return packed_int8(made.codes, made.scales, path)


def dense_operands(rng: np.random.Generator, n: int, k: int, path: str) -> dict[str, np.ndarray]:
    return {"weight": rng.standard_normal((n, k)).astype(ml_dtypes.bfloat16)}


OPERANDS: dict[str, tuple[str, Callable]] = {
    "int4": ("linear_int4", int4_operands),
    "int4 imported": ("linear_int4", imported_operands),
    "int8": ("linear_int8", int8_operands),
    "dense": ("linear", dense_operands),
}


@pytest.mark.parametrize(("op", "operands"), OPERANDS.values(), ids=OPERANDS)
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "exact"])
@pytest.mark.parametrize("path", kernels().paths)
def test_a_row_has_the_same_bits_in_any_company(op: str, operands: Callable, fast: bool, path: str):
    rng = np.random.default_rng(3)
    n, k, rows = 192, 256, 29
    x = activations(rng, rows, k, "bfloat16")
    weights = operands(rng, n, k, path)

    def product(part: np.ndarray, threads: int) -> np.ndarray:
        y = np.zeros((len(part), n), np.float32)
        run_cpu(op, {"x": np.ascontiguousarray(part), "y": y, **weights}, path=path, fast=fast, threads=threads)
        return y

    alone = np.concatenate([product(x[row : row + 1], 1) for row in range(rows)])
    for threads in (1, 2, 3):
        for size in range(1, rows + 1):
            np.testing.assert_array_equal(product(x[:size], threads), alone[:size])
    np.testing.assert_array_equal(product(x[::-1], 2), alone[::-1])


@pytest.mark.parametrize(("op", "operands"), OPERANDS.values(), ids=OPERANDS)
@pytest.mark.parametrize("path", kernels().paths)
def test_rows_that_are_not_active_are_not_touched(op: str, operands: Callable, path: str):
    rng = np.random.default_rng(4)
    x = activations(rng, 7, 128, "float32")
    x[3:] = np.nan
    y = np.full((7, 64), 7, np.float32)
    run_cpu(op, {"x": x, "y": y, **operands(rng, 64, 128, path)}, path=path, fast=True, active=3)
    assert np.isfinite(y[:3]).all()
    assert (y[3:] == 7).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "exact"])
@pytest.mark.parametrize(("op", "operands"), OPERANDS.values(), ids=OPERANDS)
@pytest.mark.parametrize("path", kernels().paths)
def test_what_is_not_finite_never_becomes_a_number(op: str, operands: Callable, fast: bool, bad: float, path: str):
    rng = np.random.default_rng(5)
    x = activations(rng, 2, 256, "float32")
    x[1, 77] = bad
    y = np.zeros((2, 64), np.float32)
    run_cpu(op, {"x": x, "y": y, **operands(rng, 64, 256, path)}, path=path, fast=fast)
    assert np.isfinite(y[0]).all()
    assert not np.isfinite(y[1]).any()


@pytest.mark.parametrize("path", kernels().paths)
def test_all_paths_multiply_int8_activations_to_the_same_bits(path: str):
    """Integer sums are exact and everything around them is one lane at a time; only the portable path of x86 has no
    fused step."""
    rng = np.random.default_rng(6)
    x = activations(rng, 5, 384, "bfloat16")
    results = []
    for each in (kernels().paths[0], path):
        y = np.zeros((5, 128), np.float32)
        run_cpu(
            "linear_int4",
            {"x": x, "y": y, **int4_operands(np.random.default_rng(7), 128, 384, each)},
            path=each,
            fast=True,
        )
        results.append(y)
    if path == "portable":
        np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4 * np.abs(results[0]).max())
    else:
        np.testing.assert_array_equal(*results)
