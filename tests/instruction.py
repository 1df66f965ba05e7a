"""One instruction on given arrays, by the CPU kernels: what the tests of tests/runtime/cpu compare."""

import ctypes
from collections.abc import Mapping
from functools import cache

import numpy as np

from qpack_runtime.cpu.native import LIBRARY, Instruction, Kernels, Program, Team, fill


@cache
def kernels() -> Kernels:
    return Kernels(LIBRARY)


@cache
def team(path: str, threads: int) -> Team:
    return Team(kernels(), threads, path)


def run_cpu(
    op: str,
    operands: Mapping[str, np.ndarray],
    attributes: Mapping[str, float] | None = None,
    *,
    path: str,
    threads: int = 2,
    fast: bool = False,
    active: int | None = None,
    scratch_slot: int = -1,
) -> int:
    """Carries out `op` in place on arrays named as in its signature line; weights are given as the kernels want them.
    Returns the number of active rows behind it. `active` None: all rows are."""
    code = (Instruction * 1)()
    fill(kernels(), code[0], op, operands, attributes or {})
    program = Program(code=code, count=1, fast=fast, scratch_slot=scratch_slot)
    program.active = 1 << 30 if active is None else active
    runner = team(path, threads)
    bytes_ = kernels().scratch_bytes(runner.handle, ctypes.byref(program))
    scratch = np.full(bytes_ + 64, 0xAA, np.uint8)  # what scratch holds before must not matter
    begin = -scratch.ctypes.data % 64
    program.scratch = scratch.ctypes.data + begin
    kernels().run(runner.handle, ctypes.byref(program))
    assert (scratch[begin + bytes_ :] == 0xAA).all(), "wrote behind its scratch"
    return program.active


def packed_int4(words: np.ndarray, scales: np.ndarray, path: str) -> dict[str, np.ndarray]:
    """Operands q and scale of `linear_int4` in the kernels' order, from Marlin words and scales."""
    k, n = scales.shape[0] * 128, scales.shape[1]
    codes, packed = np.zeros(n * k // 2, np.uint8), np.zeros_like(scales)
    pointers = (array.ctypes.data for array in (words, scales))
    kernels().pack_int4(team(path, 2).handle, *pointers, k, n, codes.ctypes.data, packed.ctypes.data)
    return {"q": codes.view(np.int32).reshape(words.shape), "scale": packed}


def packed_int8(values: np.ndarray, scales: np.ndarray, path: str) -> dict[str, np.ndarray]:
    """Operands q and scale of `linear_int8` in the kernels' order, from int8 codes [N, K] and scales [N, K/128]. The
    arrays are longer than they say: the kernels read whole tiles."""
    n, k = values.shape
    whole = -(-n // 64) * 64
    codes, packed = np.zeros((whole, k), np.int8), np.zeros((whole, k // 128), scales.dtype)
    pointers = (array.ctypes.data for array in (values, scales))
    kernels().pack_int8(team(path, 2).handle, *pointers, k, n, codes.ctypes.data, packed.ctypes.data)
    return {"q": codes[:n], "scale": packed[:n]}
