"""Quantized weights in the order of kernels/pack.h, made from the bundle's at every boot.

Packing a model takes about as long as reading it, so nothing is cached beside the bundle: docs/decisions/0012 has the
measurement. Each weight's pages of the bundle's file are given back as soon as it is packed, so memory holds it once.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from qpack_runtime.arenas import Arenas
from qpack_runtime.cpu.native import Team
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import FitError

ALIGNMENT = 64
COLUMNS, GROUP = 64, 128  # of a tile of the packed order


class Matrix(NamedTuple):
    """A quantized weight by the names of its two tensors; k and n as stored, padding included."""

    op: str
    codes: str
    scale: str
    k: int
    n: int

    @property
    def outputs(self) -> int:
        return -(-self.n // COLUMNS) * COLUMNS

    @property
    def code_bytes(self) -> int:
        return self.outputs * self.k // (2 if self.op == "int4" else 1)

    @property
    def scale_bytes(self) -> int:
        return self.outputs * self.k // GROUP * 2


def quantized_matrices(bundle: Bundle, arenas: Arenas) -> list[Matrix]:
    """Every quantized weight of the programs, each once."""
    found: dict[str, Matrix] = {}
    for program in bundle.programs.values():
        for instruction in program.code:
            if instruction.op == "linear_int4":
                codes, scale = instruction.inputs["q"], instruction.inputs["scale"]
                groups, n = arenas.weights[scale].shape
                found[codes] = Matrix("int4", codes, scale, groups * GROUP, n)
            elif instruction.op in {"linear_int8", "embed_int8"}:
                codes = instruction.inputs["q" if instruction.op == "linear_int8" else "table"]
                n, k = arenas.weights[codes].shape
                found[codes] = Matrix("int8", codes, instruction.inputs["scale"], k, n)
    return list(found.values())


def pack(bundle: Bundle, arenas: Arenas, team: Team) -> dict[str, np.ndarray]:
    """Tensor name -> its packed bytes, uint8, for the codes and scales of every quantized weight. Raises FitError."""
    matrices = quantized_matrices(bundle, arenas)
    sizes = [_aligned(size) for matrix in matrices for size in (matrix.code_bytes, matrix.scale_bytes)]
    try:
        arena = np.empty(sum(sizes) + ALIGNMENT, np.uint8)
    except MemoryError:
        raise FitError(
            f"the weights take {sum(sizes):,} bytes, more than this host gives", remedy="choose a smaller model"
        ) from None
    places = _cut(arena[-arena.ctypes.data % ALIGNMENT :], sizes)
    packed: dict[str, np.ndarray] = {}
    for matrix in matrices:
        codes, scale = arenas.weights[matrix.codes], arenas.weights[matrix.scale]
        packed[matrix.codes], packed[matrix.scale] = next(places), next(places)
        function = team.kernels.pack_int4 if matrix.op == "int4" else team.kernels.pack_int8
        pointers = (array.ctypes.data for array in (packed[matrix.codes], packed[matrix.scale]))
        function(team.handle, codes.ctypes.data, scale.ctypes.data, matrix.k, matrix.n, *pointers)
        arenas.release(matrix.codes)
    return packed


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _cut(arena: np.ndarray, sizes: list[int]) -> Iterator[np.ndarray]:
    begin = 0
    for size in sizes:
        yield arena[begin : begin + size]
        begin += size
