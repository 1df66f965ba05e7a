"""Files and directories that are made to stay: linked or copied, synced, exchanged."""

import ctypes
import errno
import os
import shutil
from pathlib import Path

from qpack_schemas.errors import UnsupportedError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # <fcntl.h>, <linux/fs.h>
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_EXCHANGE = (errno.EXDEV, errno.EBUSY, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def link_or_copy(source: Path, target: Path) -> None:
    """The bytes of `source` at `target` as well, on the disk only once where the file system can do that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not _linked(source, target):
            shutil.copyfile(source, target)
            sync(target)
    except OSError as error:
        if error.errno in _FULL:  # of the two files that it names, the second has no room
            error.filename, error.filename2 = str(target), None
        raise


def can_link(source: Path, folder: Path) -> bool:
    """Whether `link_or_copy` of `source` into `folder` takes nothing of its disk."""
    probe = folder / source.name
    if linked := _linked(source, probe):
        probe.unlink()
    return linked


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folders(root: Path) -> None:
    for folder in [*(path for path in root.rglob("*") if path.is_dir()), root]:
        sync(folder)


def exchange(a: Path, b: Path) -> None:
    """Each gets the other's name, in one step. Raises UnsupportedError where the file system has no such step."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        number = errno.ENOSYS
    elif renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return
    else:
        number = ctypes.get_errno()
    if number not in _NO_EXCHANGE:
        raise OSError(number, os.strerror(number), str(b))
    raise UnsupportedError(
        f"can't be exchanged with a new bundle in one step ({os.strerror(number)})", where=str(b),
        remedy="if it is a mount point, name a directory in it; otherwise pull to another path",
    )  # fmt: skip
