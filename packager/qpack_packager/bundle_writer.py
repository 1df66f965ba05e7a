"""Writes a bundle into a hidden directory beside its final place and renames it there when it is whole.

A build that dies leaves that directory, its work directory and no bundle; the next build of the same output goes on in
them or removes them. A lock tells a dead build's directory from one that is still being written.
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

from qpack_packager.journal import is_left, is_left_by, work_of
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.bundle_files import MANIFEST
from qpack_schemas.errors import FitError, UsageError
from qpack_schemas.manifest import FileEntry, seal
from qpack_schemas.outputs import refuse_in_bundle


class BundleWriter:
    """Files of a bundle that does not exist yet; each is synced to disk and entered in `files` with its digest."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files: list[FileEntry] = []

    def check_disk(self, needed: int, what: str) -> None:
        """Raises FitError, which says `what` needs them, if `needed` bytes more don't fit on the disk."""
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise FitError(
                f"{what}, the disk has {free:,} left",
                where=str(self.folder.parent),
                remedy="free some space, or name an output on another disk",
            )

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
        files = sorted(self.files, key=lambda entry: entry["path"])
        raw = seal({**manifest, "files": files})
        self._write(MANIFEST, raw)
        return open_bundle(self.folder, digests=False)


@contextmanager
def writing(output: Path, mark: Future[str] | None = None) -> Iterator[BundleWriter]:
    """A writer whose bundle appears at `output` at the end of the block, whole, or not at all.

    With `mark`, the fingerprint of what is built, it goes on in what a dead build with the same mark left (the mark is
    waited for only if there is something), and if the block is interrupted, what it has made stays for the next one.

    Raises UsageError for an output that exists or lies in a bundle. An OSError names the place in `output` that could
    not be written: the hidden directory of which it tells is gone when it is read."""
    refuse_existing(output)
    try:
        with _writing(output, mark) as writer:
            yield writer
    except OSError as error:
        if error.filename is not None:
            error.filename = _as_asked(os.fsdecode(error.filename), output)
        raise


@contextmanager
def _writing(output: Path, mark: Future[str] | None) -> Iterator[BundleWriter]:
    output.parent.mkdir(parents=True, exist_ok=True)
    folder, handle = _sweep(output, mark) or _begin(output)
    finished = False
    try:
        yield BundleWriter(folder)
        for directory in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
            _sync(directory)
        refuse_existing(output)
        shutil.rmtree(work_of(folder), ignore_errors=True)
        folder.rename(output)
        _sync(output.parent)
        finished = True
    finally:
        if finished or mark is None or not is_left(folder):
            _remove(folder)
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


def _as_asked(name: str, output: Path) -> str:
    """A place in the hidden directory as one in `output`; for that directory itself the one it was to be made in."""
    folder = output.parent
    try:
        first, *below = Path(name).relative_to(folder).parts
    except ValueError:  # another place, such as the checkpoint
        return name
    if not (first.startswith(f".{output.name}.") and first.removesuffix(".work").endswith(".partial")):
        return name
    return str(output.joinpath(*below) if below else folder if folder.name else folder.absolute())


def refuse_existing(output: Path) -> None:
    """Raises UsageError if nothing can be made at `output`, or nothing may be."""
    refuse_in_bundle(output)
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
            _remove_all_but_weights(folder)
            continue
        _remove(folder)
        os.close(handle)
    return found


def _remove(folder: Path) -> None:
    """Work first: without the directory that it belongs to, no sweep would find it."""
    shutil.rmtree(work_of(folder), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_all_but_weights(folder: Path) -> None:
    """The journal is of the weights only: the rest is made again, and may be other files this time."""
    for path in folder.iterdir():
        if path.is_dir() and path.name != "weights":
            shutil.rmtree(path)
        elif path.name != "weights":
            path.unlink()


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
