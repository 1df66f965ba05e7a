"""The weight files of a bundle, written from front to back; what an interrupted build left in them is taken over.

Digests and writes of a piece run beside each other, and the disk takes in what is written while more of it is made.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from qpack_schemas.manifest import FileEntry
from qpack_schemas.program import Buffer, align
from qpack_schemas.tensor_file import PAD_PREFIX, SHARD_BYTES, TensorFilePlan, TensorSpan, plan_file

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I32": "int32", "I8": "int8"}
_BLOCK = 1 << 22  # bytes read at a time
_UNSYNCED = 1 << 25  # bytes written before the disk is told to take them in
_BEHIND = 8  # times that it is told before it has done the first


def plan_weights(layout: Mapping[str, Buffer]) -> dict[str, TensorFilePlan]:
    """Weight file -> what it will hold: the tensors in order, in shards of one layer and at most SHARD_BYTES, unless a
    single tensor is larger. So a change of a tensor, even of its size, changes no file of another layer, and hosts that
    have the older bundle fetch little."""
    shards, size, layer = list[list[str]](), 0, ""
    for name, buffer in layout.items():
        padded, before, layer = align(buffer.bytes()), layer, _layer(name) or layer
        if not shards or layer != before or size + padded > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += padded
    stored = {name: (buffer.dtype, buffer.extent(1)) for name, buffer in layout.items()}
    return {
        f"weights/{index:05}.safetensors": plan_file({name: stored[name] for name in names})
        for index, names in enumerate(shards)
    }


def _layer(name: str) -> str:
    """`layers.3.mlp.down.q` -> 3; empty for what belongs to none."""
    return name.split(".")[1] if name.startswith("layers.") else ""


class WeightShards:
    """Tensors come in the order of the layout. As long as `take_over` finds them, nothing is written; from the first
    one that is written on, what lies behind it is gone."""

    def __init__(self, folder: Path, layout: Mapping[str, Buffer]):
        self.folder = folder
        self.places: dict[str, tuple[str, str]] = {}  # tensor -> (file, sha256 of its bytes)
        self.entries: list[FileEntry] = []  # of the files that are complete
        self._plans = iter(plan_weights(layout).items())
        self._file: BinaryIO | None = None
        self._path, self._digest = "", hashlib.sha256()
        self._spans: Iterator[tuple[str, TensorSpan]] = iter(())
        self._fresh = False  # nothing behind the place in the file is of use
        self._digests = ThreadPoolExecutor(2, "digests")  # of the tensor and of the file
        self._disk = ThreadPoolExecutor(1, "disk")
        self._syncing: deque[Future[None]] = deque()
        self._unsynced = 0

    def take_over(self, name: str, sha256: str) -> bool:
        """Whether the next tensor, `name`, lies in its file with that digest; then it stays."""
        file, span = self._next(name)
        if self._fresh:
            return self._refuse(file, span)
        whole, digest = self._digest.copy(), hashlib.sha256()
        left = span.bytes
        while left and (data := file.read(min(_BLOCK, left))):
            whole.update(data)
            digest.update(data)
            left -= len(data)
        if left or digest.hexdigest() != sha256:
            return self._refuse(file, span)
        self._digest = whole
        self.places[name] = self._path, sha256
        return True

    def _refuse(self, file: BinaryIO, span: TensorSpan) -> bool:
        """The tensor is still to be written."""
        self._fresh = True
        file.seek(span.begin)
        file.truncate()
        self._pending = span
        return False

    def write(self, name: str, pieces: Iterable[np.ndarray]) -> str:
        """The next tensor, `name`, whose pieces follow each other along the first axis. Returns its sha256."""
        file, span = self._next(name)
        if not self._fresh:
            self._fresh = True
            file.truncate()
        digest, lines = hashlib.sha256(), 0
        for piece in pieces:
            if (piece.dtype.name, piece.shape[1:]) != (_DTYPES[span.dtype], span.shape[1:]):
                raise AssertionError(f"{name} {piece.dtype} {piece.shape} is not the planned {span}")
            data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
            hashing = self._digests.submit(digest.update, data)
            self._put(file, data)
            hashing.result()
            lines += len(piece)
        if lines != span.shape[0]:
            raise AssertionError(f"{name} has {lines} lines, not the planned {span}")
        self.places[name] = self._path, digest.hexdigest()
        self._sync_behind(file)
        return digest.hexdigest()

    def finish(self) -> None:
        """All is on the disk when it returns. Every planned tensor must be there."""
        self._close()
        while self._syncing:
            self._syncing.popleft().result()
        if (more := next(self._plans, None)) is not None:
            raise AssertionError(f"{more[0]} is planned, but not made")

    def abandon(self) -> None:
        """Closes the file as it is."""
        self._digests.shutdown()  # none may still use the file
        self._disk.shutdown()
        if self._file is not None:
            self._file.close()
            self._file = None

    _pending: TensorSpan | None = None  # a tensor that `take_over` has not found

    def _next(self, name: str) -> tuple[BinaryIO, TensorSpan]:
        """The file at the place of the tensor `name`, which must be the next one of the plan."""
        if self._pending is not None and self._file is not None:
            span, self._pending = self._pending, None
            return self._file, span
        planned, span = self._next_span()
        assert self._file is not None
        if planned != name:
            raise AssertionError(f"{name} is made, but {planned} is planned")
        return self._file, span

    def _next_span(self) -> tuple[str, TensorSpan]:
        while True:
            for name, span in self._spans:
                if not name.startswith(PAD_PREFIX):
                    return name, span
                assert self._file is not None
                self._put(self._file, bytes(span.bytes))
            self._close()
            self._open()

    def _open(self) -> None:
        self._path, plan = next(self._plans)
        path = self.folder / self._path
        path.parent.mkdir(parents=True, exist_ok=True)
        resumed = not self._fresh and path.exists()
        self._file = path.open("r+b" if resumed else "w+b")
        if resumed and self._file.read(len(plan.header)) != plan.header:
            self._file.truncate(0)
        self._file.seek(0)
        self._digest = hashlib.sha256()
        self._put(self._file, plan.header)
        self._spans = iter(plan.spans.items())

    def _close(self) -> None:
        if self._file is None:
            return
        for _, span in self._spans:  # padding at the end
            self._put(self._file, bytes(span.bytes))
        size = self._file.tell()
        self._file.truncate()
        self._sync(self._file, _sync_and_close)
        self._file = None
        self.entries.append({"path": self._path, "bytes": size, "sha256": self._digest.hexdigest()})

    def _put(self, file: BinaryIO, data: bytes | memoryview) -> None:
        hashing = self._digests.submit(self._digest.update, data)
        with _naming(self.folder / self._path):
            file.write(data)
        hashing.result()
        self._unsynced += len(data)

    def _sync_behind(self, file: BinaryIO) -> None:
        """Lets the disk begin, so that little is left to wait for at the end."""
        if self._unsynced > _UNSYNCED and (not self._syncing or self._syncing[-1].done()):
            self._sync(file, lambda file: os.fdatasync(file.fileno()))

    def _sync(self, file: BinaryIO, how: Callable[[BinaryIO], None]) -> None:
        """Beside what is made next. Raises what earlier ones have ended with."""
        while self._syncing and (self._syncing[0].done() or len(self._syncing) == _BEHIND):
            self._syncing.popleft().result()
        path = self.folder / self._path

        def sync() -> None:
            with _naming(path):
                how(file)

        with _naming(path):
            file.flush()
        self._syncing.append(self._disk.submit(sync))
        self._unsynced = 0


def _sync_and_close(file: BinaryIO) -> None:
    with file:
        os.fsync(file.fileno())


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # a full disk does not say which one
        error.filename = error.filename or str(path)
        raise
