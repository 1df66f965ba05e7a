"""The bytes that a step must move between memory and the chip, whoever runs it.

Activations and logits stay in the cache and count nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from qpack_schemas.program import Buffer, Program

BY_LINE = frozenset({"V", "L"})  # first axes of weights of which a row reads the line of its token or position


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
    return _traffic(program, shared, rows, 1, positions)


def prefill_traffic(program: Program, shared: Mapping[str, Buffer], rows: int, positions: int) -> Traffic:
    """The traffic of a chunk of `rows` rows of one sequence, which holds `positions` positions with them. What several
    rows read, weights or keys and values or state, is read once for all of them."""
    return _traffic(program, shared, 1, rows, positions)


def _traffic(program: Program, shared: Mapping[str, Buffer], sequences: int, rows: int, positions: int) -> Traffic:
    """`rows`: of each sequence."""
    whole, by_line = set[str](), set[str]()
    kv = recurrent = 0
    begun = positions > rows  # a sequence that begins with this step has no state to read
    for instruction in program.code:
        for operand, name in instruction.operands():
            if operand.is_weight:
                (by_line if operand.dims[0] in BY_LINE else whole).add(name)
            elif operand.name in ("k", "v"):
                kv += _line(shared[name]) * (positions if operand.role == "input" else rows)
            elif operand.name == "memory":
                recurrent += _line(shared[name]) * (1 + begun)
            elif operand.name == "ring":
                columns = shared[name].extent(1)[-1]
                moved = begun * (columns - 1) + min(rows, columns)
                recurrent += _line(shared[name]) // columns * moved
    lines = sequences * rows * sum(_line(shared[name]) for name in by_line - whole)
    weights = sum(shared[name].bytes() for name in whole) + lines
    return Traffic(sequences * rows, positions, weights, sequences * kv, sequences * recurrent)


def _line(buffer: Buffer) -> int:
    """Bytes of one entry along the first axis."""
    return buffer.bytes() // buffer.extent(1)[0]
