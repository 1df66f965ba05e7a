"""The bytes that a decode step must move between memory and the chip, whoever runs it.

Activations and logits stay in the cache and count nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from qpack_schemas.program import Buffer, Program

BY_LINE = frozenset({"table", "rope"})  # operands of which a row reads one line, and not the whole tensor


@dataclass(frozen=True)
class Traffic:
    """Of one step, in bytes."""

    rows: int
    positions: int  # of each sequence
    weights: int  # read once, whatever the rows
    kv: int  # keys and values of all positions read, those of the new one written
    recurrent: int  # recurrent state and convolution columns, read and written

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.recurrent


def decode_traffic(program: Program, shared: Mapping[str, Buffer], rows: int, positions: int) -> Traffic:
    """The traffic of a step of `rows` sequences that hold `positions` positions each, the new one included. `shared`:
    weights and the buffers that outlive a step, by name."""
    whole, by_line = set[str](), set[str]()
    kv = recurrent = 0
    for instruction in program.code:
        for operand, name in instruction.operands():
            if operand.is_weight:
                (by_line if operand.name in BY_LINE else whole).add(name)
            elif operand.name in ("k", "v"):
                kv += _line(shared[name]) * (positions if operand.role == "input" else 1)
            elif operand.name == "memory":
                recurrent += 2 * _line(shared[name])
            elif operand.name == "ring":
                recurrent += _line(shared[name])  # every column is either read or written
    weights = sum(shared[name].bytes() for name in whole) + rows * sum(_line(shared[n]) for n in by_line - whole)
    return Traffic(rows, positions, weights, rows * kv, rows * recurrent)


def _line(buffer: Buffer) -> int:
    """Bytes of one entry along the first axis."""
    return buffer.bytes() // buffer.extent(1)[0]
