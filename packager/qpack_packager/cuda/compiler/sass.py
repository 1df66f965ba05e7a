"""What can be read from a kernel's machine code: how much it does, how wide it loads, what its inner loop costs."""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qpack_packager.cuda.compiler.toolchain import tool

LANES = 32  # of a warp
WARPGROUP = 4  # warps that issue one HGMMA together

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)([^;]*);")
_LABEL = re.compile(r"(\.L_x_\d+):")
_TENSOR = re.compile(r"[A-Z]*MMA\b")
_WARP_SHAPE = re.compile(r"HMMA\.(16)(8)(16|8|4)\b")
_WARPGROUP_SHAPE = re.compile(r"HGMMA\.(64)x(\d+)x(\d+)\b")


@dataclass(frozen=True)
class Loop:
    """The innermost loop with tensor-core instructions: how many instructions a warp issues in one pass, how many of
    them are the tensor core's, and the multiply-adds of those for this warp (None where the machine code does not say,
    as for the asynchronous ones of sm_100)."""

    instructions: int
    tensor: int
    multiply_adds: int | None

    def instructions_per_weight(self, rows: int) -> float | None:
        """Thread instructions per weight in a matrix product of tiles with `rows` rows: a weight takes part in one
        multiply-add per row, so that one pass reads multiply_adds / rows weights for 32 * instructions."""
        return None if self.multiply_adds is None else LANES * self.instructions * rows / self.multiply_adds


@dataclass(frozen=True)
class MachineCode:
    """instructions: without padding; tensor: those of the tensor cores; loads and stores: those of global memory, bits
    a thread -> how many."""

    instructions: int
    tensor: int
    loads: Mapping[int, int]
    stores: Mapping[int, int]
    loop: Loop | None


def read_machine_code(cubin: bytes) -> MachineCode:
    """Of the one kernel in `cubin`. UsageError: Triton, which brings the disassembler, is not installed."""
    with tempfile.TemporaryDirectory(prefix="qpack-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [tool("nvdisasm"), "--print-code", file]
        return _parse(subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout)


def _parse(listing: str) -> MachineCode:
    operations: list[str] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(operations)
        elif (found := _LINE.search(line)) and found[2] != "NOP":
            if found[2].startswith("BRA") and (to := re.search(r"`\((\.L_x_\d+)\)", found[3])):
                branches.append((len(operations), to[1]))
            operations.append(found[2])
    backward = [(labels[to], place + 1) for place, to in branches if labels[to] <= place]
    return MachineCode(
        len(operations),
        len(_tensor(operations)),
        _widths(operations, {"LDG", "LDGSTS"}),
        _widths(operations, {"STG"}),
        _inner_loop(operations, backward),
    )


def _inner_loop(operations: Sequence[str], loops: Iterable[tuple[int, int]]) -> Loop | None:
    """Of the loops that multiply and hold no other that does, the one that multiplies most: an unrolled loop has a
    small one for the remainder beside it."""
    multiplying = {(first, end) for first, end in loops if _tensor(operations[first:end])}
    inner = [
        (first, end)
        for first, end in multiplying
        if not any(first <= other and last <= end and (other, last) != (first, end) for other, last in multiplying)
    ]
    if not inner:
        return None
    first, end = max(inner, key=lambda span: (len(_tensor(operations[span[0] : span[1]])), span))
    tensor = _tensor(operations[first:end])
    products = [_multiply_adds(operation) for operation in tensor]
    known = [product for product in products if product is not None]
    return Loop(end - first, len(tensor), sum(known) if len(known) == len(products) else None)


def _tensor(operations: Sequence[str]) -> list[str]:
    return [operation for operation in operations if _TENSOR.match(operation)]


def _multiply_adds(operation: str) -> int | None:
    """Of one warp: m * n * k of the instruction's shape."""
    for pattern, warps in ((_WARP_SHAPE, 1), (_WARPGROUP_SHAPE, WARPGROUP)):
        if shape := pattern.match(operation):
            m, n, k = map(int, shape.groups())
            return m * n * k // warps
    return None


def _widths(operations: Iterable[str], names: set[str]) -> dict[int, int]:
    widths = Counter(_width(operation) for operation in operations if operation.partition(".")[0] in names)
    return dict(sorted(widths.items(), reverse=True))


def _width(operation: str) -> int:
    named = re.search(r"\.(?:[US](8|16)|(64|128|256))(?![0-9A-Z])", operation)
    return int(named[1] or named[2]) if named else 32
