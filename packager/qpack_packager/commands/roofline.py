"""How fast a decode step could be: the bytes it must move over the memory bandwidth of a device.

The roofline of S. Williams, A. Waterman and D. Patterson (CACM 52(4), 2009) far left of the ridge, where decoding is.
An upper bound: activations, logits, launches and arithmetic are taken to cost nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from qpack_schemas.program import Buffer, Program

BY_LINE = {"table", "rope"}  # operands of which a row reads one line, and not the whole tensor


@dataclass(frozen=True)
class Device:
    """`memory_bytes` takes the data sheet's GB for 10^9 bytes; the rest of it is left to driver and display."""

    name: str
    memory_bytes: int
    bytes_per_second: float
    source: str


def _device(name: str, gigabytes: int, gigabytes_per_second: float, source: str) -> Device:
    return Device(name, gigabytes * 10**9, gigabytes_per_second * 1e9, f"NVIDIA, {source}")


DEVICES = (
    _device("Jetson Orin Nano 8GB", 8, 102, "Jetson Orin Nano Super Developer Kit data sheet"),
    _device("Jetson Orin NX 16GB", 16, 102.4, "Jetson Orin NX Series data sheet"),
    _device("Jetson AGX Orin 64GB", 64, 204.8, "Jetson AGX Orin Series data sheet"),
    _device("GeForce RTX 4060", 8, 272, "GeForce RTX 4060 Family product page"),
    _device("L4", 24, 300, "L4 Tensor Core GPU data sheet"),
    _device("GeForce RTX 3090", 24, 936, "GA102 GPU Architecture whitepaper"),
    _device("GeForce RTX 4090", 24, 1008, "Ada GPU Architecture whitepaper"),
    _device("GeForce RTX 5090", 32, 1792, "RTX Blackwell GPU Architecture whitepaper"),
    _device("H200", 141, 4800, "H200 Tensor Core GPU data sheet"),
)


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

    def tokens_per_second(self, device: Device) -> float:
        return self.rows * device.bytes_per_second / self.total


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
