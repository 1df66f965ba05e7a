"""Launch tables bound to a bucket: grids in numbers, arguments in bytes. Done once at boot, looked up never."""

import ctypes
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qpack_runtime.cuda.driver import Driver, argument_pointers
from qpack_runtime.cuda.kernels import LoadedKernel
from qpack_schemas.launch_table import Argument, LaunchTable, Scalar, grid_of


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel with all that it is launched with; a node read back from a graph is told in the same words."""

    kernel: str
    function: int  # CUfunction
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: bytes  # every argument at its own offset, as the kernel reads them
    after: tuple[int, ...]  # launches that must have ended, ascending


def bind(
    table: LaunchTable, kernels: Mapping[str, LoadedKernel], rows: int, context: int, address: Callable[[str], int]
) -> list[KernelLaunch]:
    """The launches of a bucket of `rows` rows and `context` positions; `address` gives a buffer's place on the GPU."""
    bound: list[KernelLaunch] = []
    for launch in table.launches:
        kernel = kernels[launch.kernel]
        arguments = pack(kernel, launch.args, rows, address)
        grid, after = grid_of(launch, rows, context), tuple(sorted(launch.after))
        bound.append(
            KernelLaunch(kernel.name, kernel.function, grid, kernel.block, kernel.shared_bytes, arguments, after)
        )
    return bound


def pack(kernel: LoadedKernel, args: tuple[Argument, ...], rows: int, address: Callable[[str], int]) -> bytes:
    """The argument bytes, little-endian; the scratch pointers behind them and the gaps between them are zero."""
    packed = bytearray(kernel.argument_bytes)
    for argument, offset in zip(args, kernel.offsets[:-2], strict=True):
        if isinstance(argument, Scalar):
            struct.pack_into("<i", packed, offset, argument.of(rows))
        else:
            struct.pack_into("<Q", packed, offset, address(argument))
    return bytes(packed)


class DirectLaunch:
    """A launch ready for cuLaunchKernel, without a graph."""

    def __init__(self, launch: KernelLaunch, offsets: tuple[int, ...]):
        self._arguments = ctypes.create_string_buffer(launch.arguments, len(launch.arguments))
        self._pointers = argument_pointers(self._arguments, offsets)
        self._launch = launch

    def enqueue(self, driver: Driver, stream: int) -> None:
        one = self._launch
        shape: tuple[Any, ...] = (*one.grid, *one.block, one.shared_bytes)
        driver.call("cuLaunchKernel", one.function, *shape, stream, ctypes.addressof(self._pointers), None)
