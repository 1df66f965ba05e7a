"""How fast a decode step could be: the bytes it must move over the memory bandwidth of a device.

The roofline of S. Williams, A. Waterman and D. Patterson (CACM 52(4), 2009) far left of the ridge, where decoding is.
An upper bound: activations, logits and arithmetic are taken to cost nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from qpack_packager.devices import Device
from qpack_schemas.program import Buffer, Program

BY_LINE = {"table", "rope"}  # operands of which a row reads one line, and not the whole tensor

# Between two kernels of a graph nothing is loaded: 1.3 us on an H100, as measured by Spector et al., "Look Ma, No
# Bubbles!" (Hazy Research, 2025).
LAUNCH_SECONDS = 1.3e-6


@dataclass(frozen=True)
class Traffic:
    """Bytes that one decode step moves between memory and the chip."""

    rows: int
    positions: int  # of each sequence
    weights: int  # read once, whatever the rows
    kv: int  # keys and values of all positions read, those of the new one written
    recurrent: int  # recurrent state and convolution columns, read and written

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.recurrent

    def tokens_per_second(self, device: Device, launches: int = 0) -> float:
        """What the bandwidth allows at most; with `launches` kernels in a step, what their boundaries leave of it."""
        return self.rows / (self.total / device.bytes_per_second + launches * LAUNCH_SECONDS)


def decode_traffic(
    program: Program, shared: Mapping[str, Buffer], weights: Mapping[str, Buffer], rows: int, positions: int
) -> Traffic:
    """The traffic of a step of `rows` sequences that hold `positions` positions each, the new one included."""
    whole, by_line = set[str](), set[str]()
    kv = recurrent = 0
    for instruction in program.code:
        for operand, name in instruction.operands():
            if name in weights:
                (by_line if operand.name in BY_LINE else whole).add(name)
            elif operand.name in ("k", "v"):
                kv += _line(shared[name]) * (positions if operand.role == "input" else 1)
            elif operand.name == "memory":
                recurrent += 2 * _line(shared[name])
            elif operand.name == "ring":
                recurrent += _line(shared[name])  # every column is either read or written
    read = sum(weights[name].bytes() for name in whole) + rows * sum(_line(weights[name]) for name in by_line - whole)
    return Traffic(rows, positions, read, rows * kv, rows * recurrent)


def _line(buffer: Buffer) -> int:
    """Bytes of one entry along the first axis."""
    return buffer.bytes() // buffer.extent(1)[0]
