"""Files at a bundle's root that are no part of it: read without following a link, replaced whole or not at all."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qpack_schemas.errors import InputError

PROVENANCE = "provenance.intoto.jsonl"
SIGNATURE = "signature.dsse.json"
PARTIAL = ".partial"  # ends the name of one that is being written

LARGEST = 1 << 20  # bytes of a file that is read; a statement has a few thousand
_NEW_FILE_MODE = 0o666  # before the umask


def read_detached(path: Path) -> bytes | None:
    """The bytes of a regular file, None if there is nothing. Raises InputError for a link, a device, or a file of more
    than 1 MiB."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would wait for its writer
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise InputError("is a symbolic link; a bundle holds only its own files", where=str(path)) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InputError("is not a regular file", where=str(path))
    with open(handle, "rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise InputError(f"is larger than the {LARGEST} bytes that such a file may have", where=str(path))
    return data


@contextmanager
def locked(bundle: Path) -> Iterator[None]:
    """One process at a time changes what lies at the root of `bundle`; others wait."""
    handle = os.open(bundle, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_detached(path: Path, data: bytes) -> None:
    """Puts `data` in the place of `path`; readers see the old bytes or the new. Called under the lock.

    What a killed process leaves is named `PATH.partial`. Of a signature the contract allows that name, so the bundle
    stays whole; the next one writes over it."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(partial, flags, _NEW_FILE_MODE), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
