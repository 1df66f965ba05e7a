"""Launch tables: what the files kernels/<target>/{decode,prefill}.json mean.

A table is how one target carries out one program: kernels in order, each with its grid and its arguments. It owns the
work buffers as this target holds them (a linear's output as planes, scratch between the launches of one instruction,
values that stay in registers left out); every other buffer is the program's or the manifest's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from qpack_schemas.program import ITEM_BYTES, Kind, align
from qpack_schemas.strict_json import JsonValue

WORK_ITEM_BYTES: Mapping[str, int] = {**ITEM_BYTES, "int64": 8}
SCRATCH_MARK = "~"  # in the name of a work buffer that no program knows: "0.attn.y~partial"

Dim = int | str  # of a grid: a number, "R" rows, "R/8" ceil(rows / 8), "C/256" ceil(context / 256)
Grid = tuple[Dim, Dim, Dim]  # x, y, z


@dataclass(frozen=True)
class TargetBuffer:
    """A buffer of the table's work arena. Address = base + rows * offset; so one plan serves every bucket."""

    dtype: str
    shape: tuple[int | str, ...]  # "R", the rows of the bucket, may stand at one place
    offset: int  # bytes per row

    def extent(self, rows: int) -> tuple[int, ...]:
        """The shape in a bucket of `rows` rows."""
        return tuple(rows if dim == "R" else int(dim) for dim in self.shape)

    def bytes_per_row(self) -> int:
        """Of a shape without "R", all its bytes: it must fit into a bucket of one row."""
        return WORK_ITEM_BYTES[self.dtype] * prod(self.extent(1))

    def to_json(self) -> JsonValue:
        return {"dtype": self.dtype, "shape": list(self.shape), "offset": self.offset}

    @staticmethod
    def from_json(value: JsonValue) -> "TargetBuffer":
        return TargetBuffer(value["dtype"], tuple(value["shape"]), value["offset"])


@dataclass(frozen=True)
class Scalar:
    """An argument of Triton type i32: a constant, or the rows of the bucket."""

    value: int | Literal["R"]

    def of(self, rows: int) -> int:
        return rows if self.value == "R" else self.value


Argument = str | Scalar  # a string names a buffer, whose address is passed


@dataclass(frozen=True)
class Launch:
    kernel: str  # name in the target's `kernels`
    code: tuple[int, int]  # the instructions it belongs to: first, last
    grid: Grid
    args: tuple[Argument, ...]  # in the order of the kernel's parameters
    after: tuple[int, ...]  # launches that must have ended

    def to_json(self) -> JsonValue:
        args = [{"i32": arg.value} if isinstance(arg, Scalar) else arg for arg in self.args]
        head = {"kernel": self.kernel, "code": list(self.code), "grid": list(self.grid)}
        return {**head, "args": args, "after": list(self.after)}

    @staticmethod
    def from_json(value: JsonValue) -> "Launch":
        args = tuple(arg if isinstance(arg, str) else Scalar(arg["i32"]) for arg in value["args"])
        x, y, z = value["grid"]
        first, last = value["code"]
        return Launch(value["kernel"], (first, last), (x, y, z), args, tuple(value["after"]))


@dataclass(frozen=True)
class LaunchTable:
    kind: Kind
    target: str  # "cuda:sm_89"
    work: Mapping[str, TargetBuffer]
    launches: tuple[Launch, ...]

    def to_json(self) -> JsonValue:
        return {
            "kind": self.kind,
            "target": self.target,
            "work": {name: buffer.to_json() for name, buffer in self.work.items()},
            "launches": [launch.to_json() for launch in self.launches],
        }

    @staticmethod
    def from_json(value: JsonValue) -> "LaunchTable":
        work = {name: TargetBuffer.from_json(buffer) for name, buffer in value["work"].items()}
        launches = tuple(Launch.from_json(launch) for launch in value["launches"])
        return LaunchTable(value["kind"], value["target"], work, launches)

    def lifetimes(self) -> dict[str, tuple[int, int]]:
        """Work buffer -> (index of the first launch that names it, index of the last one)."""
        spans: dict[str, tuple[int, int]] = {}
        for index, launch in enumerate(self.launches):
            for name in launch.args:
                if isinstance(name, str) and name in self.work:
                    spans[name] = (spans.get(name, (index, index))[0], index)
        return spans

    def work_bytes_per_row(self) -> int:
        return max((buffer.offset + align(buffer.bytes_per_row()) for buffer in self.work.values()), default=0)


def grid_of(launch: Launch, rows: int, context: int) -> tuple[int, int, int]:
    """The grid (x, y, z) in a bucket of `rows` rows and `context` positions."""
    x, y, z = (_extent(dim, rows, context) for dim in launch.grid)
    return x, y, z


def _extent(dim: Dim, rows: int, context: int) -> int:
    if isinstance(dim, int):
        return dim
    letter, _, divisor = dim.partition("/")
    return -(-{"R": rows, "C": context}[letter] // int(divisor or 1))


def table_path(target: str, kind: Kind) -> str:
    """Where the table of `target` lies in the bundle: kernels/sm_89/decode.json for "cuda:sm_89"."""
    return f"{kernel_folder(target)}/{kind}.json"


def kernel_folder(target: str) -> str:
    """Where the tables and kernels of `target` lie in the bundle: kernels/sm_89 for "cuda:sm_89"."""
    return f"kernels/{target.partition(':')[2]}"
