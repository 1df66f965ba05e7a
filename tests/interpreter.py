"""Triton's interpreter, repaired: kernels compute on the CPU what they would compute on a GPU.

Triton 3.9's interpreter truncates float32 to bfloat16, maps some NaNs to infinities, multiplies and adds the bit
patterns of bfloat16 numbers, and takes an integer for one. Its matrix product is numpy's, whose order of summation
follows the shape and the place of a row, so that nothing could be said about rows that must not see each other.
`install` mends all that, makes the interpreter some three times faster, and checks itself, so that another Triton fails
loudly.

TRITON_INTERPRET must be 1 before a kernel module is imported; tests/conftest.py sees to that.
"""

import types
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter as ti

BITS = {  # float32 -> bfloat16: ties to even, overflow, infinity, minus zero, subnormal
    1.0: 0x3F80, 1.00390625: 0x3F80, 1.01171875: 0x3F82, 3.3895314e38: 0x7F7F, np.inf: 0x7F80, -0.0: 0x8000,
    1e-40: 0x0001,
}  # fmt: skip


def install() -> None:
    """Repairs the interpreter of this process. Raises RuntimeError if the repair does not hold."""
    builder: Any = ti.InterpreterBuilder
    if getattr(builder, "repaired", False):
        return
    convert, binary, cast = ti._convert_float, builder.binary_op, builder.cast_impl

    def convert_float(data, source, target, rounding):
        if (source, target) == (tl.float32, tl.bfloat16):
            return _narrow(data).view(np.uint16)
        if (source, target) == (tl.bfloat16, tl.float32):
            return _widen(data).view(np.uint32)
        return convert(data, source, target, rounding)

    def binary_op(self, lhs, rhs, op):
        if lhs.dtype.scalar != tl.bfloat16:
            return binary(self, lhs, rhs, op)
        result = op(_widen(lhs.data), _widen(rhs.data))
        if result.dtype == np.bool_:
            return ti.TensorHandle(result, tl.int1)
        return ti.TensorHandle(_narrow(result).view(np.uint16), tl.bfloat16)

    def cast_impl(self, source, target):
        if target.scalar == tl.bfloat16 and not source.dtype.scalar.is_floating():
            return ti.TensorHandle(_narrow(source.data).view(np.uint16), tl.bfloat16)
        return cast(self, source, target)

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        return ti.TensorHandle(_product(_numbers(a), _numbers(b), d.data), d.dtype.scalar)

    ti._convert_float, builder.binary_op, builder.create_dot = convert_float, binary_op, create_dot
    builder.cast_impl = cast_impl
    # Every call of a jitted helper would patch triton.language anew, and every sum of integers would be taken twice.
    whole = types.FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
    scope = ti._patch_lang(whole)
    scope.restore = lambda: None
    ti._patch_lang = lambda fn: scope
    object.__setattr__(ti.interpreter_builder.options, "sanitize_overflow", False)
    builder.repaired = True
    _check(builder())


def _widen(bits: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(bits).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _narrow(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32).astype(ml_dtypes.bfloat16)


def _numbers(handle) -> np.ndarray:
    return (_widen(handle.data) if handle.dtype.scalar == tl.bfloat16 else handle.data).astype(np.float32)


def _product(a: np.ndarray, b: np.ndarray, start: np.ndarray) -> np.ndarray:
    """start + a @ b in float32, k ascending for every element: no element depends on where in the tile it stands.

    numpy adds along a leading axis slice by slice."""
    if a.ndim == 2:
        return np.add.reduce(np.ascontiguousarray(a.T)[:, :, None] * b[:, None, :], axis=0) + start
    return np.stack([_product(*parts) for parts in zip(a, b, start, strict=True)])


def _check(builder) -> None:
    source = np.array(list(BITS), np.float32)
    narrow = builder.cast_impl(ti.TensorHandle(source, tl.float32), tl.bfloat16)
    three = builder.cast_impl(ti.TensorHandle(np.array([3], np.int32), tl.int32), tl.bfloat16)
    wrong = narrow.data.tolist() != list(BITS.values()) or three.data.tolist() != [0x4040]
    if wrong or builder.cast_impl(narrow, tl.float32).data[-1] <= 0:
        raise RuntimeError(f"the repair of Triton's bfloat16 does not hold: {narrow.data.tolist()}")
