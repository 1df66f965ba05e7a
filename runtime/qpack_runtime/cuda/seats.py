"""The sampling tables of a slot, from host arrays to the device."""

from collections.abc import Mapping

import numpy as np

from qpack_runtime.cuda.driver import Driver
from qpack_runtime.cuda.memory import DeviceMemory
from qpack_runtime.cuda.pinned import PinnedRows
from qpack_schemas.program import align


class Seats:
    """Sends one slot's line of every table [S, ...] that outlives a step in the io arena."""

    def __init__(self, driver: Driver, stream: int, memory: DeviceMemory, tables: Mapping[str, np.ndarray]):
        self._driver, self._stream = driver, stream
        self._lines: list[tuple[np.ndarray, int, int]] = []  # table as bytes [S, n], its address, place in a pinned row
        end = 0
        for name, table in tables.items():
            lines = table.reshape(len(table), -1).view(np.uint8)
            self._lines.append((lines, memory.base["io"] + memory.shared[name].offset, end))
            end += align(lines.shape[1])
        self._rows = PinnedRows(driver, stream, end)

    def send(self, slot: int) -> None:
        """In stream order: steps already launched see the old lines. The tables may be written again at once."""
        row = self._rows.take()
        for lines, address, place in self._lines:
            size = lines.shape[1]
            row.array[place : place + size] = lines[slot]
            target = address + slot * size
            self._driver.call("cuMemcpyHtoDAsync_v2", target, row.address + place, size, self._stream)
        self._rows.enqueued(row)
