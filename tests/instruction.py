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


def packed_int4(
    words: np.ndarray, scales: np.ndarray, path: str, zeros: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Operands q, scale and, if given, zero of `linear_int4` in the kernels' order, from Marlin's."""
    k, n = scales.shape[0] * 128, scales.shape[1]
    codes = np.zeros(n * k // 2, np.uint8)
    kernels().pack_int4(team(path, 2).handle, words.ctypes.data, k, n, codes.ctypes.data)
    groups = {"scale": scales, **({} if zeros is None else {"zero": zeros})}
    packed = {name: _packed(values, np.zeros_like(values), k, n, path, marlin=True) for name, values in groups.items()}
    return {"q": codes.view(np.int32).reshape(words.shape), **packed}


def packed_int8(values: np.ndarray, scales: np.ndarray, path: str) -> dict[str, np.ndarray]:
    """Operands q and scale of `linear_int8` in the kernels' order, from int8 codes [N, K] and scales [N, K/128]. The
    arrays are longer than they say: the kernels read whole tiles."""
    n, k = values.shape
    whole = -(-n // 64) * 64
    codes, packed = np.zeros((whole, k), np.int8), np.zeros((whole, k // 128), scales.dtype)
    kernels().pack_int8(team(path, 2).handle, values.ctypes.data, k, n, codes.ctypes.data)
    return {"q": codes[:n], "scale": _packed(scales, packed, k, n, path, marlin=False)[:n]}


def _packed(values: np.ndarray, packed: np.ndarray, k: int, n: int, path: str, *, marlin: bool) -> np.ndarray:
    """`packed`, filled with what `values` has for each group."""
    arguments = (values.ctypes.data, values.itemsize, marlin, k, n, packed.ctypes.data)
    kernels().pack_groups(team(path, 2).handle, *arguments)
    return packed
