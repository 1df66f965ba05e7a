"""The memory of a bundle: allocated once at boot, seen through views at the planned offsets."""

import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.errors import FitError
from qpack_schemas.program import ALIGNMENT, Buffer

Dtype = np.dtype[Any]
# By their names in a bundle. numpy has no bfloat16: to it these are two bytes, which kernels know how to read.
OPAQUE: Mapping[str, Dtype] = {
    **{name: np.dtype(name) for name in ("float32", "float16", "int32", "int16", "int8")},
    "bfloat16": np.dtype("V2"),
}


def numeric(name: str) -> Dtype:
    """For who computes with numpy. What makes bfloat16 a number there takes 8 MB of memory, so it is imported here."""
    if name != "bfloat16":
        return OPAQUE[name]
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


class Arenas:
    """Arenas state, io and work in host memory, and the weight files mapped read-only. `dtype_of` says what the arrays
    are, given a bundle's name of a dtype. Raises FitError."""

    def __init__(self, bundle: Bundle, dtype_of: Callable[[str], Dtype]):
        self._dtype_of = dtype_of
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
            self.weights[name] = raw.view(dtype_of(self.shared[name].dtype)).reshape(span.shape)
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
        return raw.view(self._dtype_of(buffer.dtype)).reshape(buffer.extent(rows))


def _allocate(size: int) -> np.ndarray:
    """uint8 [size], zeroed, on an ALIGNMENT boundary."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + size]
