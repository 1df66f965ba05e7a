"""The memory of a bundle: allocated once at boot, seen through views at the planned offsets."""

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
        maps: dict[Path, np.ndarray] = {}
        self.weights: dict[str, np.ndarray] = {}
        for name, (path, span) in bundle.tensors.items():
            if path not in maps:
                maps[path] = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
            raw = maps[path][span.begin : span.begin + span.bytes]
            self.weights[name] = raw.view(DTYPES[self.shared[name].dtype]).reshape(span.shape)

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
