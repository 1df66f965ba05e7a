"""The hidden directory beside a bundle's place in which it arrives: held by one pull, found again by the next.

`bundle/` has what is whole, `blobs/` by digest what is under way. A pull that dies leaves it all; a lock tells
that of a living one.
"""

import fcntl
import glob
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qpack_delivery.oci.files import exchange, sync
from qpack_delivery.oci.local import previous_of, refuse_others
from qpack_delivery.oci.modelpack import Layer
from qpack_delivery.progress import Progress


class Arrival:
    def __init__(self, folder: Path):
        self.folder, self.bundle, self.blobs = folder, folder / "bundle", folder / "blobs"
        for one in (self.bundle, self.blobs):
            one.mkdir(exist_ok=True)

    def blob(self, layer: Layer) -> Path:
        """Where the bytes of a blob are gathered."""
        return self.blobs / layer.digest.removeprefix("sha256:")

    def held(self, layer: Layer) -> int:
        """Bytes of a blob that an earlier pull left."""
        blob = self.blob(layer)
        return min(blob.stat().st_size, layer.bytes) if blob.is_file() else 0

    def switch(self, output: Path) -> Path | None:
        """What has arrived becomes the bundle at `output`, in one step. Returns where the one is that was there."""
        with _locked(output.parent):  # of two pulls to one place, one is first
            refuse_others(output)
            if not output.exists():
                self.bundle.rename(output)
                sync(output.parent)
                return None
            previous = previous_of(output)
            refuse_others(previous)
            exchange(self.bundle, output)
            if previous.exists():
                previous.rename(self.folder / "outgoing")
            self.bundle.rename(previous)
            sync(output.parent)
            return previous


@contextmanager
def arriving(output: Path, digest: str, progress: Progress) -> Iterator[Arrival]:
    """Removed at the end of the block, and with it what dead pulls to this place left. If the block raises, what has
    come stays for the next pull of the same digest."""
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = output.parent / f".{output.name}.{digest.removeprefix('sha256:')[:12]}.partial"
    handle = _held(folder, output, progress)
    try:
        yield Arrival(folder)
        shutil.rmtree(folder, ignore_errors=True)
        _sweep(output)
    except BaseException:
        if not any(path.is_file() for path in folder.rglob("*")):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _held(folder: Path, output: Path, progress: Progress) -> int:
    """The directory's lock; one that its last holder has removed meanwhile is made again."""
    while True:
        folder.mkdir(exist_ok=True)
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note(f"waiting for another pull to {output}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        if folder.exists() and os.path.samestat(os.fstat(handle), folder.stat()):
            return handle
        os.close(handle)


def _sweep(output: Path) -> None:
    for folder in output.parent.glob(f".{glob.escape(output.name)}.*.partial"):
        if not re.fullmatch(r".*\.[0-9a-f]{12}\.partial", folder.name):
            continue  # a build's
        try:
            with _locked(folder, wait=False):
                shutil.rmtree(folder, ignore_errors=True)
        except (FileNotFoundError, BlockingIOError):
            continue


@contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
