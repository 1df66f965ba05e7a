"""The bytes that a step must move between memory and the chip, whoever runs it.

Activations and logits stay in the cache and count nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
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
    return _sum(_each(program, shared, rows, 1, positions), rows, positions)


def decode_traffic_by_instruction(
    program: Program, shared: Mapping[str, Buffer], rows: int, positions: int
) -> list[Traffic]:
    """What each instruction of a decode step moves; together `decode_traffic`. A weight that several read is counted
    once: where it is read whole, if it is anywhere, else where its lines are first read."""
    return list(_each(program, shared, rows, 1, positions))


def prefill_traffic(program: Program, shared: Mapping[str, Buffer], rows: int, positions: int) -> Traffic:
    """The traffic of a chunk of `rows` rows of one sequence, which holds `positions` positions with them. What several
    rows read, weights or keys and values or state, is read once for all of them."""
    return _sum(_each(program, shared, 1, rows, positions), rows, positions)


def _sum(parts: Iterable[Traffic], rows: int, positions: int) -> Traffic:
    weights = kv = recurrent = 0
    for part in parts:
        weights, kv, recurrent = weights + part.weights, kv + part.kv, recurrent + part.recurrent
    return Traffic(rows, positions, weights, kv, recurrent)


def _each(
    program: Program, shared: Mapping[str, Buffer], sequences: int, rows: int, positions: int
) -> Iterator[Traffic]:
    """One after the other, by instruction. `rows`: of each sequence."""
    begun = positions > rows  # a sequence that begins with this step has no state to read
    operands = [pair for instruction in program.code for pair in instruction.operands()]
    whole = {name for operand, name in operands if operand.is_weight and operand.dims[0] not in BY_LINE}
    counted = set[str]()
    for instruction in program.code:
        weights = kv = recurrent = 0
        for operand, name in instruction.operands():
            if operand.is_weight:
                by_line = operand.dims[0] in BY_LINE
                if name not in counted and not (by_line and name in whole):
                    counted.add(name)
                    weights += sequences * rows * _line(shared[name]) if by_line else shared[name].bytes()
            elif operand.name in ("k", "v"):
                kv += _line(shared[name]) * (positions if operand.role == "input" else rows)
            elif operand.name == "memory":
                recurrent += _line(shared[name]) * (1 + begun)
            elif operand.name == "ring":
                columns = shared[name].extent(1)[-1]
                moved = begun * (columns - 1) + min(rows, columns)
                recurrent += _line(shared[name]) // columns * moved
        yield Traffic(sequences * rows, positions, weights, sequences * kv, sequences * recurrent)


def _line(buffer: Buffer) -> int:
    """Bytes of one entry along the first axis."""
    return buffer.bytes() // buffer.extent(1)[0]
