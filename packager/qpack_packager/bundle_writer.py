"""Writes a bundle into a hidden directory beside its final place and renames it there when it is whole.

A build that dies leaves that directory and no bundle; the next build of the same output goes on in it or removes it. A
lock tells a dead build's directory from one that is still being written.
"""

import fcntl
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from qpack_packager.journal import WORK, is_left, is_left_by
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.bundle_files import MANIFEST
from qpack_schemas.errors import UsageError
from qpack_schemas.manifest import FileEntry, seal


class BundleWriter:
    """Files of a bundle that does not exist yet; each is synced to disk and entered in `files` with its digest."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files: list[FileEntry] = []

    def add(self, path: str, data: bytes) -> str:
        """Writes one file and returns its sha256."""
        self._write(path, data)
        digest = hashlib.sha256(data).hexdigest()
        self.files.append({"path": path, "bytes": len(data), "sha256": digest})
        return digest

    def add_detached(self, path: str, data: bytes) -> None:
        """A file that is made when the bundle_id exists, and is no part of it."""
        self._write(path, data)

    def _write(self, path: str, data: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # a full disk does not say which one
            error.filename = error.filename or str(target)
            raise

    def seal(self, manifest: Mapping[str, object]) -> Bundle:
        """Writes the manifest over all files so far and checks the whole."""
        shutil.rmtree(self.folder / WORK, ignore_errors=True)
        files = sorted(self.files, key=lambda entry: entry["path"])
        raw = seal({**manifest, "files": files})
        self._write(MANIFEST, raw)
        return open_bundle(self.folder, digests=False)


@contextmanager
def writing(output: Path, mark: Future[str] | None = None) -> Iterator[BundleWriter]:
    """A writer whose bundle appears at `output` at the end of the block, whole, or not at all.

    With `mark`, the fingerprint of what is built, it goes on in what a dead build with the same mark left (the mark is
    waited for only if there is something), and if the block is interrupted, what it has made stays for the next one.
    """
    refuse_existing(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    folder, handle = _sweep(output, mark) or _begin(output)
    finished = False
    try:
        yield BundleWriter(folder)
        shutil.rmtree(folder / WORK, ignore_errors=True)
        for directory in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
            _sync(directory)
        refuse_existing(output)
        folder.rename(output)
        _sync(output.parent)
        finished = True
    finally:
        if finished or mark is None or not is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _begin(output: Path) -> tuple[Path, int]:
    """A new directory and its lock. One that another build's sweep finds before it is locked is gone: then again."""
    while True:
        folder = output.parent / f".{output.name}.{secrets.token_hex(4)}.partial"
        try:
            folder.mkdir()
            try:
                handle = os.open(folder, os.O_RDONLY)
            except FileNotFoundError:
                continue
            fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists():
                return folder, handle
            os.close(handle)
        except KeyboardInterrupt:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def refuse_existing(output: Path) -> None:
    if output.exists() or output.is_symlink():
        raise UsageError(
            "exists already; qpack never writes over a bundle", where=str(output), remedy="remove it first"
        )
    nearest = next(parent for parent in output.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise UsageError("is a file, so no bundle can be made in it", where=str(nearest), remedy="name another output")


def is_resumable(output: Path) -> bool:
    """Whether a build of this output has left something that the same build can go on from."""
    return any(map(is_left, _partials(output)))


def _partials(output: Path) -> list[Path]:
    return sorted(output.parent.glob(f".{glob.escape(output.name)}.*.partial"))


def _sweep(output: Path, mark: Future[str] | None) -> tuple[Path, int] | None:
    """Removes what dead builds of this output left, all but the first with this mark, which is returned with its lock.
    A directory whose lock is held belongs to a living one."""
    found: tuple[Path, int] | None = None
    for folder in _partials(output):
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # finished, or swept by another
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        if mark and found is None and is_left(folder) and is_left_by(folder, mark.result()):
            found = folder, handle
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
    return found


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
