"""Programs and buffers: what the files programs/*.json and the manifest's `buffers` mean.

A program is straight-line code of one kind (decode or prefill) over R rows. It owns the buffers that live for one step
(arenas io and work); weights and buffers that outlive a step are shared by both programs and stand in the manifest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from qpack_schemas.instructions import INSTRUCTIONS, Operand
from qpack_schemas.strict_json import JsonValue

ALIGNMENT = 256  # bytes, of every buffer in every arena
ITEM_BYTES: Mapping[str, int] = {"float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "int8": 1}

Kind = Literal["decode", "prefill"]
Arena = Literal["weights", "state", "io", "work"]
KINDS: tuple[Kind, ...] = ("decode", "prefill")


def align(size: int) -> int:
    """`size` bytes rounded up to ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Buffer:
    """A typed view of an arena. `offset` is in bytes from the arena's base; in `work` it is bytes *per row*: address =
    base + rows * offset, so one plan serves every bucket. In `io`, [R, ...] has room for the largest bucket."""

    arena: Arena
    dtype: str
    shape: tuple[int | str, ...]  # "R" may stand in front: the rows of the bucket
    offset: int = -1  # -1: not placed yet

    def extent(self, rows: int) -> tuple[int, ...]:
        """The shape in a bucket of `rows` rows."""
        return tuple(rows if dim == "R" else int(dim) for dim in self.shape)

    def bytes(self, rows: int = 1) -> int:
        return ITEM_BYTES[self.dtype] * prod(self.extent(rows))

    def to_json(self) -> JsonValue:
        return {"arena": self.arena, "dtype": self.dtype, "shape": list(self.shape), "offset": self.offset}

    @staticmethod
    def from_json(value: JsonValue) -> "Buffer":
        return Buffer(value["arena"], value["dtype"], tuple(value["shape"]), value["offset"])


@dataclass(frozen=True)
class Instruction:
    op: str
    inputs: Mapping[str, str]  # operand -> buffer
    outputs: Mapping[str, str]
    updates: Mapping[str, str] = field(default_factory=dict[str, str])
    attrs: Mapping[str, int | float | bool] = field(default_factory=dict[str, int | float | bool])

    def operands(self) -> Iterator[tuple[Operand, str]]:
        """The operands that are present, each with the name of its buffer; unknown names are left to validation."""
        for operand in INSTRUCTIONS[self.op].operands.values():
            names = {"input": self.inputs, "update": self.updates, "output": self.outputs}[operand.role]
            if operand.name in names:
                yield operand, names[operand.name]

    def to_json(self) -> JsonValue:
        parts = {"inputs": self.inputs, "outputs": self.outputs, "updates": self.updates, "attrs": self.attrs}
        return {"op": self.op, **{name: dict(part) for name, part in parts.items() if part}}

    @staticmethod
    def from_json(value: JsonValue) -> "Instruction":
        parts = {name: value.get(name, {}) for name in ("inputs", "outputs", "updates", "attrs")}
        return Instruction(value["op"], **parts)


@dataclass(frozen=True)
class Program:
    kind: Kind
    activation: str  # dtype of activations, KV cache and convolution state
    buffers: Mapping[str, Buffer]  # io and work
    code: tuple[Instruction, ...]

    def to_json(self) -> JsonValue:
        return {
            "kind": self.kind,
            "activation": self.activation,
            "buffers": {name: buffer.to_json() for name, buffer in self.buffers.items()},
            "code": [instruction.to_json() for instruction in self.code],
        }

    @staticmethod
    def from_json(value: JsonValue) -> "Program":
        buffers = {name: Buffer.from_json(buffer) for name, buffer in value["buffers"].items()}
        code = tuple(Instruction.from_json(instruction) for instruction in value["code"])
        return Program(value["kind"], value["activation"], buffers, code)

    def lifetimes(self) -> dict[str, tuple[int, int]]:
        """Work buffer -> (index of the instruction that writes it, index of its last use)."""
        spans: dict[str, tuple[int, int]] = {}
        for index, instruction in enumerate(self.code):
            for _, name in instruction.operands():
                if name in self.buffers and self.buffers[name].arena == "work":
                    spans[name] = (spans.get(name, (index, index))[0], index)
        return spans

    def work_bytes_per_row(self) -> int:
        work = [buffer for buffer in self.buffers.values() if buffer.arena == "work"]
        return max((buffer.offset + align(buffer.bytes()) for buffer in work), default=0)
