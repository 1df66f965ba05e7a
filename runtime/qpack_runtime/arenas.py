"""The memory of a bundle: allocated once at boot, seen through views at the planned offsets."""

import mmap
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.errors import FitError
from qpack_schemas.program import ALIGNMENT, Buffer

DTYPES: Mapping[str, type] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
}


class Arenas:
    """Arenas state, io and work in host memory, and the weight files mapped read-only. Raises FitError."""

    def __init__(self, bundle: Bundle):
        memory = bundle.manifest["memory"]
        self.shared = shared_buffers(bundle.manifest)
        sizes = memory["state_bytes"], memory["io_bytes"], max(memory["work_bytes"].values())
        try:
            self.state, self.io, self.work = map(_allocate, sizes)
        except MemoryError:
            raise FitError(
                f"state, io and work take {sum(sizes):,} bytes, more than this host gives",
                remedy="build with fewer --slots or a smaller --context",
            ) from None
        maps: dict[Path, mmap.mmap] = {}
        self.weights: dict[str, np.ndarray] = {}
        self._pages: dict[str, tuple[mmap.mmap, int, int]] = {}  # where a weight begins and ends in its file
        for name, (path, span) in bundle.tensors.items():
            if path not in maps:
                with path.open("rb") as file:
                    maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            raw = np.frombuffer(maps[path], np.uint8, span.bytes, span.begin)
            self.weights[name] = raw.view(DTYPES[self.shared[name].dtype]).reshape(span.shape)
            self._pages[name] = maps[path], span.begin, span.begin + span.bytes

    def release(self, weight: str) -> None:
        """Gives a weight's memory back to the system; it is read from its file again if it is asked for again."""
        pages, begin, end = self._pages[weight]
        begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        if end > begin:
            pages.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def view(self, name: str, buffer: Buffer, rows: int) -> np.ndarray:
        """The array at a buffer's place in a bucket of `rows` rows; work offsets are bytes per row."""
        if buffer.arena == "weights":
            return self.weights[name]
        arena = {"state": self.state, "io": self.io, "work": self.work}[buffer.arena]
        begin = buffer.offset * (rows if buffer.arena == "work" else 1)
        raw = arena[begin : begin + buffer.bytes(rows)]
        return raw.view(DTYPES[buffer.dtype]).reshape(buffer.extent(rows))


def _allocate(size: int) -> np.ndarray:
    """uint8 [size], zeroed, on an ALIGNMENT boundary."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + size]
