"""The compiled kernels as Python sees them: structures and functions of kernels/api.h, through ctypes.

A call releases the interpreter lock. Nothing here allocates in a step: structures are filled once, when a program is
bound.
"""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p
from pathlib import Path

import numpy as np

from qpack_runtime.arenas import OPAQUE
from qpack_schemas.errors import UnsupportedError, UsageError
from qpack_schemas.instructions import INSTRUCTIONS

LIBRARY = Path(__file__).with_name("libqpack_cpu.so")
MOST_OPERANDS, MOST_ATTRIBUTES, RANK = 20, 4, 4
DTYPES = ("float32", "bfloat16", "float16", "int32", "int16", "int8")  # enum Dtype
_CODES = {name: code for code, name in enumerate(DTYPES)} | {OPAQUE["bfloat16"].name: DTYPES.index("bfloat16")}


class Tensor(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("dims", c_int64 * RANK), ("dtype", c_int32), ("rank", c_int32))


class Instruction(ctypes.Structure):
    _fields_ = (
        ("op", c_int32),
        ("unused", c_int32),
        ("operands", Tensor * MOST_OPERANDS),
        ("attributes", c_double * MOST_ATTRIBUTES),
    )


class Program(ctypes.Structure):
    _fields_ = (
        ("code", POINTER(Instruction)),
        ("count", c_int64),
        ("scratch", c_void_p),
        ("fast", c_int32),
        ("scratch_slot", c_int32),
        ("active", c_int32),
    )


class Kernels:
    """The functions of the library at `path`. Raises UnsupportedError if there is none, or one of another version."""

    def __init__(self, path: Path):
        if not path.exists():
            raise UnsupportedError(
                "this installation has no CPU kernels: no C++ compiler could make them when it was built",
                remedy="install a wheel for this platform, or a C++ compiler and then qpack-llm again (pip install -v "
                "shows why); --device reference runs without, slowly",
            )
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise UnsupportedError(
                f"the CPU kernels can't be loaded: {error}", remedy="install qpack-llm again"
            ) from None

        def function(name: str, result: type | None, *arguments: type):
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            return found

        self.team = function("qpack_team", c_void_p, c_char_p, c_int)
        self.team_end = function("qpack_team_end", None, c_void_p)
        self.scratch_bytes = function("qpack_scratch_bytes", c_int64, c_void_p, POINTER(Program))
        self.run = function("qpack_run", None, c_void_p, POINTER(Program))
        self.pack_int4 = function("qpack_pack_int4", None, c_void_p, c_void_p, c_int64, c_int64, c_void_p)
        self.pack_int8 = function("qpack_pack_int8", None, c_void_p, c_void_p, c_int64, c_int64, c_void_p)
        self.pack_groups = function(
            "qpack_pack_groups", None, c_void_p, c_void_p, c_int, c_int, c_int64, c_int64, c_void_p
        )
        self.read_seconds = function("qpack_read_seconds", c_double, c_void_p, c_void_p, c_int64)
        self.paths: list[str] = function("qpack_paths", c_char_p)().decode("ascii").split()
        self.operands, self.attributes = _signatures(function("qpack_signatures", c_char_p)().decode("ascii"))


class Team:
    """Threads that run programs with the kernels of one code path. Close it, or its threads stay."""

    def __init__(self, kernels: Kernels, threads: int, path: str | None = None):
        self.handle = None  # also where there is none in the end: __del__ looks at it
        if threads < 1:
            raise UsageError(f"{threads} threads compute nothing", remedy="give at least 1")
        self.path = path or kernels.paths[0]
        if self.path not in kernels.paths:
            raise UsageError(
                f"code path {self.path} does not run on this processor",
                remedy=f"choose one of {', '.join(kernels.paths)}",
            )
        self.kernels, self.threads = kernels, threads
        self.handle = kernels.team(self.path.encode("ascii"), threads)
        if not self.handle:
            raise UnsupportedError(f"the system gives no {threads} threads", remedy="ask for fewer --threads")

    def close(self) -> None:
        if self.handle:
            self.kernels.team_end(self.handle)
            self.handle = None

    def __del__(self) -> None:
        self.close()


def fill(
    kernels: Kernels, made: Instruction, op: str, operands: Mapping[str, np.ndarray], attributes: Mapping[str, float]
) -> None:
    """Binds one instruction to arrays, by the operand names of its signature line; absent operands stay null."""
    made.op = list(kernels.operands).index(op)
    for place, name in enumerate(kernels.operands[op]):
        if name in operands:
            array, tensor = operands[name], made.operands[place]
            assert array.flags.c_contiguous, (op, name)
            tensor.data, tensor.rank = array.ctypes.data, array.ndim
            tensor.dtype = _CODES[array.dtype.name]
            tensor.dims[:] = (*array.shape, 1, 1, 1, 1)[:RANK]
    for place, name in enumerate(kernels.attributes[op]):
        made.attributes[place] = attributes[name]


def _signatures(text: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Operand and attribute names per instruction, in the library's order. Raises UnsupportedError if the instruction
    set that the library was compiled for is not the contract's."""
    operands: dict[str, list[str]] = {}
    attributes: dict[str, list[str]] = {}
    for line in text.splitlines():
        op, rest = line.split("(")
        named, given = rest.rstrip("}").split("){")
        operands[op], attributes[op] = named.split(","), [name for name in given.split(",") if name]
    wanted = {op: (list(line.operands), list(line.attributes)) for op, line in INSTRUCTIONS.items()}
    found = {op: (operands[op], attributes[op]) for op in operands}
    if found != wanted:
        different = sorted(op for op in {*found, *wanted} if found.get(op) != wanted.get(op))
        raise UnsupportedError(
            f"the CPU kernels are of another version: {', '.join(different)} differ", remedy="install qpack-llm again"
        )
    return operands, attributes
