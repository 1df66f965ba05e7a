"""Writes the weights of a checkpoint: safetensors files of at most 5 GB and their index, tensor by tensor.

The layout is the safetensors library's: no fillers, which loaders would take for weights, and tensors of wide numbers
first, so that each is aligned to its numbers. Unlike the library's, the bytes depend on the tensors alone.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qpack_packager.bundle_writer import BundleWriter
from qpack_packager.progress import Step
from qpack_schemas.strict_json import dump_canonical
from qpack_schemas.tensor_file import CODES, DTYPE_BITS

SHARD_BYTES = 5 * 10**9  # as transformers cuts them
INDEX = "model.safetensors.index.json"
_CODES = {**CODES, "int64": "I64"}
_FORMAT = {"format": "pt"}  # without it transformers refuses a file


@dataclass(frozen=True)
class Entry:
    """A tensor that is still to be made, in pieces that follow each other along the first axis."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[np.ndarray]]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BITS[_CODES[self.dtype]] // 8


def write_shards(writer: BundleWriter, entries: Sequence[Entry], step: Step, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes model.safetensors, or several files and an index. Each is synced to disk."""
    shards, size = [list[Entry]()], 0
    for entry in entries:
        if shards[-1] and size + entry.bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.bytes
    if len(shards) == 1:
        return _write(writer.folder / "model.safetensors", shards[0], step)
    files: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write(writer.folder / file, shard, step)
        files |= {entry.name: file for entry in shard}
    total = sum(entry.bytes for entry in entries)
    writer.add(INDEX, dump_canonical({"metadata": {"total_size": total}, "weight_map": files}))
    return None


def _write(path: Path, entries: Sequence[Entry], step: Step) -> None:
    ordered = sorted(entries, key=lambda entry: -DTYPE_BITS[_CODES[entry.dtype]])
    header: dict[str, object] = {"__metadata__": _FORMAT}
    place = 0
    for entry in ordered:
        spans = [place, place + entry.bytes]
        header[entry.name] = {"dtype": _CODES[entry.dtype], "shape": list(entry.shape), "data_offsets": spans}
        place += entry.bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % 8)
    try:
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for entry in ordered:
                begin = file.tell()
                for piece in entry.pieces():
                    if (piece.dtype.name, piece.shape[1:]) != (entry.dtype, entry.shape[1:]):
                        raise AssertionError(f"{entry.name}: {piece.dtype} {piece.shape} is not {entry}")
                    file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
                if file.tell() - begin != entry.bytes:
                    raise AssertionError(f"{entry.name} has {file.tell() - begin} bytes, not {entry.bytes}")
                step(entry.name, entry.bytes)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # a full disk does not say which one, and closing the file fails once more
        error.filename = error.filename or str(path)
        raise
