"""Puts new bytes in the place of a file, whole or not at all."""

import os
import secrets
import stat
from pathlib import Path

NEW_FILE_MODE = 0o666  # before the umask


def replace_file(path: Path, data: bytes) -> None:
    """Writes beside `path` and renames, so that a reader sees the old bytes or the new. The mode is kept.

    Raises OSError, with the file as it was; also for a symbolic link, which is never written through."""
    mode = None
    if os.path.lexists(path):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError(None, "is a link or no regular file, so it is not written", str(path))
        mode = stat.S_IMODE(found.st_mode)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, NEW_FILE_MODE), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
