"""The bytes that a decode step must move, and how fast this GPU's memory copies: together the roofline of a step."""

from dataclasses import dataclass

from qpack_runtime.cuda.driver import Driver
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.program import Buffer

BY_LINE = frozenset({"table", "rope"})  # operands of which a row reads one line
COPY_BYTES = 256 << 20  # more than any L2 cache holds
COPIES = 10


@dataclass(frozen=True)
class Traffic:
    weights: int  # read once, whatever the rows
    kv: int  # keys and values of all positions read, those of the new one written
    recurrent: int  # memory and convolution columns, read and written

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.recurrent


def decode_traffic(bundle: Bundle, rows: int, positions: int) -> Traffic:
    """Of a step of `rows` sequences that hold `positions` positions each, the new one included. Activations stay in the
    cache and count nothing."""
    shared, whole, by_line = shared_buffers(bundle.manifest), set[str](), set[str]()
    kv = recurrent = 0
    for instruction in bundle.programs["decode"].code:
        for operand, name in instruction.operands():
            if name in bundle.tensors:
                (by_line if operand.name in BY_LINE else whole).add(name)
            elif operand.name in ("k", "v"):
                kv += _line(shared[name]) * (positions if operand.role == "input" else 1)
            elif operand.name == "memory":
                recurrent += 2 * _line(shared[name])
            elif operand.name == "ring":
                recurrent += _line(shared[name])  # every column is either read or written
    weights = sum(shared[name].bytes() for name in whole) + rows * sum(_line(shared[n]) for n in by_line - whole)
    return Traffic(weights, rows * kv, rows * recurrent)


def copy_bandwidth(driver: Driver, stream: int) -> float:
    """Bytes per second, those read and those written, of copies from the GPU's memory to itself."""
    size = min(COPY_BYTES, driver.call("cuMemGetInfo_v2")[0] // 8)
    source, target = (driver.call("cuMemAlloc_v2", size) for _ in range(2))
    begin, end = (driver.call("cuEventCreate", 0) for _ in range(2))
    for number in range(COPIES + 1):
        if number == 1:  # the first one warms up
            driver.call("cuEventRecord", begin, stream)
        driver.call("cuMemcpyDtoDAsync_v2", target, source, size, stream)
    driver.call("cuEventRecord", end, stream)
    driver.call("cuEventSynchronize", end)
    return 2 * size * COPIES / (max(driver.call("cuEventElapsedTime", begin, end), 1e-6) / 1000)


def _line(buffer: Buffer) -> int:
    """Bytes of one entry along the first axis."""
    return buffer.bytes() // buffer.extent(1)[0]
