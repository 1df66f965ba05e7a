"""Runs a kernel in the interpreter on numpy arrays, with what a GPU would not forgive: each array stands between
stretches of NaN that must be unread and stay, and the programs of the grid run in both orders."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import torch
from triton.runtime import interpreter as ti

import interpreter

interpreter.install()

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
# Largest relative error of rounding to the dtype once.
UNIT_ROUNDOFF = {DTYPES["float32"]: 2.0**-24, DTYPES["bfloat16"]: 2.0**-8, DTYPES["float16"]: 2.0**-11}
MARGIN = 256  # bytes before and behind an array; every bit is set: NaN as a float, -1 as an integer


def launch(kernel: Any, grid: Sequence[int], *arguments: Any, **constants: Any) -> None:
    """Runs the kernel on copies, first program first and then last program first, and writes what both gave back into
    the arrays. Arguments that are not arrays are passed as they are."""
    runs = [_run(kernel, grid, arguments, constants, backwards) for backwards in (False, True)]
    for array, once, again in zip(arguments, *runs, strict=True):
        if isinstance(array, np.ndarray):
            assert once.tobytes() == again.tobytes(), "the order of programs shows"
            array[...] = once


def _run(kernel: Any, grid: Sequence[int], arguments: Sequence[Any], constants: dict[str, Any], backwards: bool):
    memories = [_surrounded(array) if isinstance(array, np.ndarray) else None for array in arguments]
    passed = [
        array if memory is None else _tensor(memory, array.dtype)
        for array, memory in zip(arguments, memories, strict=True)
    ]
    quiet = np.errstate(invalid="ignore", over="ignore")  # padding computes with NaN, and a GPU warns of nothing
    with quiet, _backwards(grid) if backwards else nullcontext():
        kernel[tuple(grid)](*passed, **constants)
    results = []
    for array, memory in zip(arguments, memories, strict=True):
        if memory is None:
            results.append(array)
            continue
        inside = memory[MARGIN : MARGIN + array.nbytes]
        assert (memory[:MARGIN] == 0xFF).all(), "written before an array"
        assert (memory[MARGIN + array.nbytes :] == 0xFF).all(), "written behind an array"
        results.append(inside.view(array.dtype).reshape(array.shape))
    return results


def _surrounded(array: np.ndarray) -> np.ndarray:
    memory = np.full(array.nbytes + 2 * MARGIN, 0xFF, np.uint8)
    memory[MARGIN : MARGIN + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memory


def _tensor(memory: np.ndarray, dtype: np.dtype) -> torch.Tensor:
    return torch.from_numpy(memory)[MARGIN : len(memory) - MARGIN].view(getattr(torch, dtype.name))


@contextmanager
def _backwards(grid: Sequence[int]) -> Iterator[None]:
    x_size, y_size, z_size = (*grid, 1, 1)[:3]
    builder, forwards = ti.interpreter_builder, ti.interpreter_builder.set_grid_idx
    builder.set_grid_idx = lambda x, y, z: forwards(x_size - 1 - x, y_size - 1 - y, z_size - 1 - z)
    try:
        yield
    finally:
        del builder.set_grid_idx


def nans(shape: int | Sequence[int], dtype: Any) -> np.ndarray:
    """Memory in which nobody has written: NaN as a float, -1 as an integer."""
    size = (shape,) if isinstance(shape, int) else tuple(shape)
    return np.full(math.prod(size) * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype).reshape(size)


def normal(rng: np.random.Generator, shape: int | Sequence[int], dtype: Any = np.float32, scale: float = 1.0):
    return (rng.standard_normal(shape) * scale).astype(dtype)


def linear_value(
    rng: np.random.Generator, rows: int, columns: int, planes: int, dtype: np.dtype, bias: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A linear's output as kernels hold it, and as the instruction's buffer [rows, columns] would: with `planes`,
    float32 [planes, rows, columns] that are added in ascending order, then the bias, then rounded."""
    if planes == 0:
        buffer = normal(rng, (rows, columns), dtype)
        return buffer, buffer
    parts = normal(rng, (planes, rows, columns))
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    if bias is not None:
        total += bias.astype(np.float32)
    return parts, total.astype(dtype)


def assert_rounded_once(actual: np.ndarray, exact: np.ndarray, slack: float = 2e-6) -> None:
    """`actual` is the float32 array `exact` rounded once to its dtype; `slack` is for another order of summation,
    relative to the largest value."""
    wide = actual.astype(np.float32)
    assert not np.isnan(wide).any()
    error = np.abs(wide - exact)
    allowed = UNIT_ROUNDOFF[actual.dtype] * np.abs(exact) + slack * max(1.0, float(np.abs(exact).max(initial=0)))
    worst = np.unravel_index(np.argmax(error - allowed), error.shape)
    assert (error <= allowed).all(), f"{wide[worst]} instead of {exact[worst]} at {worst}"
