"""Quantized weights in the order of kernels/pack.h, made from the bundle's at every boot.

Packing a model takes about as long as reading it, so nothing is cached beside the bundle: docs/decisions/0012 has the
measurement. Each tensor's pages of the bundle's file are given back as soon as it is packed, so memory holds it once.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from qpack_runtime.arenas import Arenas
from qpack_runtime.cpu.native import Team
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import FORMS
from qpack_schemas.errors import FitError

ALIGNMENT = 64
COLUMNS, GROUP = 64, 128  # of a tile of the packed order
QUANTIZED = ("marlin_codes", "marlin_scales", "marlin_zeros", "int8_codes", "int8_scales")  # forms


class Part(NamedTuple):
    """A tensor of a quantized weight: its codes, or what its groups have. k and n of the weight as stored, padding
    included."""

    tensor: str
    form: str
    k: int
    n: int
    packed_bytes: int


def quantized_parts(bundle: Bundle, arenas: Arenas) -> list[Part]:
    """Every tensor of the programs' quantized weights, each once."""
    found: dict[str, Part] = {}
    for program in bundle.programs.values():
        for instruction in program.code:
            for operand, name in instruction.operands():
                form = FORMS.get((instruction.op, operand.name))
                if form in QUANTIZED:
                    found[name] = _part(name, form, arenas.weights[name])
    return list(found.values())


def _part(name: str, form: str, stored: np.ndarray) -> Part:
    first, last = stored.shape
    k, n, item, each = {  # an item of `each` weights along K
        "marlin_codes": (first * 16, last // 2, 1, 2),
        "marlin_scales": (first * GROUP, last, stored.itemsize, GROUP),
        "marlin_zeros": (first * GROUP, last, 1, GROUP),
        "int8_codes": (last, first, 1, 1),
        "int8_scales": (last * GROUP, first, stored.itemsize, GROUP),
    }[form]
    return Part(name, form, k, n, -(-n // COLUMNS) * COLUMNS * k // each * item)


def pack(bundle: Bundle, arenas: Arenas, team: Team) -> dict[str, np.ndarray]:
    """Tensor name -> its packed bytes, uint8, for the codes, scales and zero points of every quantized weight. Raises
    FitError."""
    parts = quantized_parts(bundle, arenas)
    sizes = [_aligned(part.packed_bytes) for part in parts]
    try:
        arena = np.empty(sum(sizes) + ALIGNMENT, np.uint8)
    except MemoryError:
        raise FitError(
            f"the weights take {sum(sizes):,} bytes, more than this host gives", remedy="choose a smaller model"
        ) from None
    packed: dict[str, np.ndarray] = {}
    for part, place in zip(parts, _cut(arena[-arena.ctypes.data % ALIGNMENT :], sizes), strict=True):
        _pack(part, arenas.weights[part.tensor], team, place)
        packed[part.tensor] = place
        arenas.release(part.tensor)
    return packed


def _pack(part: Part, stored: np.ndarray, team: Team, place: np.ndarray) -> None:
    kernels, sizes = team.kernels, (part.k, part.n, place.ctypes.data)
    if part.form == "marlin_codes":
        kernels.pack_int4(team.handle, stored.ctypes.data, *sizes)
    elif part.form == "int8_codes":
        kernels.pack_int8(team.handle, stored.ctypes.data, *sizes)
    else:
        kernels.pack_groups(team.handle, stored.ctypes.data, stored.itemsize, part.form != "int8_scales", *sizes)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _cut(arena: np.ndarray, sizes: list[int]) -> Iterator[np.ndarray]:
    begin = 0
    for size in sizes:
        yield arena[begin : begin + size]
        begin += size
