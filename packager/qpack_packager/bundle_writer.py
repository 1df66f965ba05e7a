"""Writes a bundle into a hidden directory beside its final place and renames it there when it is whole.

A build that dies leaves that directory and no bundle; the next build of the same output removes it. A lock tells a dead
build's directory from one that is still being written.
"""

import fcntl
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from qpack_schemas.bundle import open_bundle
from qpack_schemas.bundle_files import MANIFEST
from qpack_schemas.errors import UsageError
from qpack_schemas.manifest import FileEntry, seal
from qpack_schemas.program import Buffer, align
from qpack_schemas.tensor_file import PAD_PREFIX, SHARD_BYTES, TensorFilePlan, plan_file

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I32": "int32", "I8": "int8"}


class BundleWriter:
    """Files of a bundle that does not exist yet; each is synced to disk and entered in `files` with its digest."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files: list[FileEntry] = []

    def add(self, path: str, data: bytes) -> str:
        """Writes one file and returns its sha256."""
        return self._write(path, [data])

    def _write(self, path: str, chunks: Iterable[bytes | memoryview]) -> str:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        try:
            with target.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # a full disk does not say which one
            error.filename = error.filename or str(target)
            raise
        self.files.append({"path": path, "bytes": size, "sha256": digest.hexdigest()})
        return digest.hexdigest()

    def add_weights(
        self, layout: Mapping[str, Buffer], arrays: Iterator[tuple[str, np.ndarray]]
    ) -> dict[str, tuple[str, str]]:
        """Streams `arrays`, which come in the order of `layout`, into the files of `plan_weights`. Returns tensor ->
        (file, sha256 of the tensor's bytes)."""
        places: dict[str, tuple[str, str]] = {}
        for path, plan in plan_weights(layout).items():
            digests: dict[str, str] = {}
            self._write(path, _stream(plan, arrays, digests))
            places |= {name: (path, digest) for name, digest in digests.items()}
        if (more := next(arrays, None)) is not None:
            raise AssertionError(f"{more[0]} is made, but not planned")
        return places

    def seal(self, manifest: Mapping[str, object]) -> str:
        """Writes the manifest over all files so far and checks the whole. Returns the bundle_id."""
        files = sorted(self.files, key=lambda entry: entry["path"])
        raw = seal({**manifest, "files": files})
        self._write(MANIFEST, [raw])
        return open_bundle(self.folder, digests=False).bundle_id


def _stream(
    plan: TensorFilePlan, arrays: Iterator[tuple[str, np.ndarray]], digests: dict[str, str]
) -> Iterator[bytes | memoryview]:
    """The bytes of one weight file, tensor by tensor; enters the sha256 of each into `digests`."""
    yield plan.header
    for name, span in plan.spans.items():
        if name.startswith(PAD_PREFIX):
            yield bytes(span.bytes)
            continue
        made, array = next(arrays)
        if (made, array.dtype.name, array.shape) != (name, _DTYPES[span.dtype], span.shape):
            raise AssertionError(f"{made} {array.dtype} {array.shape} is not the planned {name} {span}")
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        digests[name] = hashlib.sha256(data).hexdigest()
        yield data


def plan_weights(layout: Mapping[str, Buffer]) -> dict[str, TensorFilePlan]:
    """Weight file -> what it will hold: the tensors in order, in shards of at most SHARD_BYTES unless a single tensor
    is larger."""
    shards, size = list[list[str]](), 0
    for name, buffer in layout.items():
        padded = align(buffer.bytes())
        if not shards or size + padded > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += padded
    stored = {name: (buffer.dtype, buffer.extent(1)) for name, buffer in layout.items()}
    return {
        f"weights/{index:05}.safetensors": plan_file({name: stored[name] for name in names})
        for index, names in enumerate(shards)
    }


@contextmanager
def writing(output: Path) -> Iterator[BundleWriter]:
    """A writer whose bundle appears at `output` at the end of the block, whole, or not at all."""
    refuse_existing(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    _sweep(output)
    folder = output.parent / f".{output.name}.{secrets.token_hex(4)}.partial"
    unlocked = folder.with_suffix(".new")  # a name that no sweep looks for
    unlocked.mkdir()
    handle = os.open(unlocked, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        unlocked.rename(folder)
        yield BundleWriter(folder)
        for directory in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
            _sync(directory)
        refuse_existing(output)
        folder.rename(output)
        _sync(output.parent)
    finally:
        os.close(handle)
        shutil.rmtree(folder, ignore_errors=True)


def refuse_existing(output: Path) -> None:
    if output.exists() or output.is_symlink():
        raise UsageError(
            "exists already; qpack never writes over a bundle", where=str(output), remedy="remove it first"
        )
    nearest = next(parent for parent in output.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise UsageError("is a file, so no bundle can be made in it", where=str(nearest), remedy="name another output")


def _sweep(output: Path) -> None:
    """Removes what dead builds of this output left. A directory whose lock is held belongs to a living one."""
    for folder in output.parent.glob(f".{glob.escape(output.name)}.*.partial"):
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
