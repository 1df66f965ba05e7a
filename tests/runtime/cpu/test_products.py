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
from qpack_runtime.reference.int8 import dequantize as dequantize_int8
from qpack_runtime.reference.marlin import dequantize as dequantize_int4

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
@given(**SHAPES, with_bias=st.booleans())
def test_int4_products_are_those_of_the_weights_that_the_codes_stand_for(
    path, rows, groups, short, tiles, cut, x_dtype, y_dtype, fast, threads, seed, with_bias
):
    rng = np.random.default_rng(seed)
    k, n = max(1, groups * GROUP - short), max(1, 64 * tiles - cut)
    quantized = rtn.quantize(padded(rng.standard_normal((n, k)), -(-k // GROUP) * GROUP, 64 * tiles).astype(np.float32))
    words, scales = marlin.pack(quantized.codes.T.copy()), marlin.permute_scales(quantized.scales.T.copy())
    x, y = activations(rng, rows, k, x_dtype), np.zeros((rows, n), DTYPES[y_dtype])
    bias = rng.standard_normal(n).astype(DTYPES[x_dtype]) if with_bias else None
    operands = {"x": x, "y": y, **packed_int4(words, scales, path), **({} if bias is None else {"bias": bias})}
    run_cpu("linear_int4", operands, path=path, fast=fast, threads=threads)
    check("linear_int4", x, dequantize_int4(words, scales).T[:n, :k], y, bias, fast)


@settings(max_examples=120)
@given(**SHAPES)
def test_int8_products_are_those_of_the_weights_that_the_codes_stand_for(
    path, rows, groups, short, tiles, cut, x_dtype, y_dtype, fast, threads, seed
):
    rng = np.random.default_rng(seed)
    k, n = max(1, groups * GROUP - short), max(1, 64 * tiles - cut)
    made = int8.quantize(padded(rng.standard_normal((n, k)), -(-k // GROUP) * GROUP, n).astype(np.float32))
    x, y = activations(rng, rows, k, x_dtype), np.zeros((rows, n), DTYPES[y_dtype])
    operands = {"x": x, "y": y, **packed_int8(made.codes, made.scales, path)}
    run_cpu("linear_int8", operands, path=path, fast=fast, threads=threads)
    check("linear_int8", x, dequantize_int8(made.codes, made.scales)[:, :k], y, None, fast)


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
    operands = {"x": x, "weight": weight, "y": y, **({} if bias is None else {"bias": bias})}
    run_cpu("linear", operands, path=path, fast=fast, threads=threads)
    check("linear", x, weight, y, bias, fast)


def int4_operands(rng: np.random.Generator, n: int, k: int, path: str) -> dict[str, np.ndarray]:
    made = rtn.quantize(rng.standard_normal((n, k)).astype(np.float32))
    return packed_int4(marlin.pack(made.codes.T.copy()), marlin.permute_scales(made.scales.T.copy()), path)


def int8_operands(rng: np.random.Generator, n: int, k: int, path: str) -> dict[str, np.ndarray]:
    made = int8.quantize(rng.standard_normal((n, k)).astype(np.float32))
    return packed_int8(made.codes, made.scales, path)


def dense_operands(rng: np.random.Generator, n: int, k: int, path: str) -> dict[str, np.ndarray]:
    return {"weight": rng.standard_normal((n, k)).astype(ml_dtypes.bfloat16)}


OPERANDS: dict[str, Callable] = {"linear_int4": int4_operands, "linear_int8": int8_operands, "linear": dense_operands}


@pytest.mark.parametrize("op", OPERANDS)
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "exact"])
@pytest.mark.parametrize("path", kernels().paths)
def test_a_row_has_the_same_bits_in_any_company(op: str, fast: bool, path: str):
    rng = np.random.default_rng(3)
    n, k, rows = 192, 256, 29
    x = activations(rng, rows, k, "bfloat16")
    weights = OPERANDS[op](rng, n, k, path)

    def product(part: np.ndarray, threads: int) -> np.ndarray:
        y = np.zeros((len(part), n), np.float32)
        run_cpu(op, {"x": np.ascontiguousarray(part), "y": y, **weights}, path=path, fast=fast, threads=threads)
        return y

    alone = np.concatenate([product(x[row : row + 1], 1) for row in range(rows)])
    for threads in (1, 2, 3):
        for size in range(1, rows + 1):
            np.testing.assert_array_equal(product(x[:size], threads), alone[:size])
    np.testing.assert_array_equal(product(x[::-1], 2), alone[::-1])


@pytest.mark.parametrize("op", OPERANDS)
@pytest.mark.parametrize("path", kernels().paths)
def test_rows_that_are_not_active_are_not_touched(op: str, path: str):
    rng = np.random.default_rng(4)
    x = activations(rng, 7, 128, "float32")
    x[3:] = np.nan
    y = np.full((7, 64), 7, np.float32)
    run_cpu(op, {"x": x, "y": y, **OPERANDS[op](rng, 64, 128, path)}, path=path, fast=True, active=3)
    assert np.isfinite(y[:3]).all()
    assert (y[3:] == 7).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "exact"])
@pytest.mark.parametrize("op", OPERANDS)
@pytest.mark.parametrize("path", kernels().paths)
def test_what_is_not_finite_never_becomes_a_number(op: str, fast: bool, bad: float, path: str):
    rng = np.random.default_rng(5)
    x = activations(rng, 2, 256, "float32")
    x[1, 77] = bad
    y = np.zeros((2, 64), np.float32)
    run_cpu(op, {"x": x, "y": y, **OPERANDS[op](rng, 64, 256, path)}, path=path, fast=fast)
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
