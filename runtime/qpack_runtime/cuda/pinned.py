"""Page-locked host memory that takes turns: while the device copies one row, the host fills the other."""

import ctypes
from dataclasses import dataclass

import numpy as np

from qpack_runtime.cuda.driver import Driver

NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING: cheaper to record and to wait for


@dataclass(frozen=True)
class Row:
    array: np.ndarray  # uint8
    address: int
    event: int  # recorded behind the last copy from or to this row


class PinnedRows:
    """`count` rows of `size` bytes each, used in turn. The one owner of when a row may be used again."""

    def __init__(self, driver: Driver, stream: int, size: int, count: int = 2):
        self._driver, self._stream = driver, stream
        self._address = driver.call("cuMemHostAlloc", size * count, 0)
        self._rows = [self._row(self._address + index * size, size) for index in range(count)]
        self._taken = 0

    def take(self) -> Row:
        """The next row, once the device is done with what it was last used for."""
        row = self._rows[self._taken % len(self._rows)]
        self._taken += 1
        self._driver.call("cuEventSynchronize", row.event)  # returns at once for an event never recorded
        return row

    def enqueued(self, row: Row) -> None:
        """All copies of this use of the row are in the stream."""
        self._driver.call("cuEventRecord", row.event, self._stream)

    def free(self) -> None:
        """Gives the memory back; no copy may be under way."""
        self._driver.call("cuMemFreeHost", self._address)

    def _row(self, address: int, size: int) -> Row:
        array = np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))
        return Row(array, address, self._driver.call("cuEventCreate", NO_TIMING))
