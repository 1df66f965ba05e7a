"""What comparing with a checkpoint keeps on the disk meanwhile, in the system's folder for temporary files."""

import shutil
import tempfile

from qpack_schemas.errors import FitError

FLOAT = 4  # bytes of float32


def check_scratch(windows: tuple[int, int], *, rows: int, vocab: int, hidden: int) -> None:
    """Raises FitError if there is no room for the hidden states of all `windows` [n, L], which go into a layer and come
    out of it, and for the reference's logits of as many windows as the bundle decodes at once, `rows` at most."""
    count, length = windows
    states = 2 * count * length * hidden * FLOAT
    logits = min(rows, count) * (length - 1) * vocab * FLOAT
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if states + logits > free:
        raise FitError(
            f"comparing with the checkpoint needs {states + logits:,} bytes on the disk for a while, {free:,} are left",
            where=folder,
            remedy="free some space, name a folder on another disk in TMPDIR, or give a shorter text",
        )
