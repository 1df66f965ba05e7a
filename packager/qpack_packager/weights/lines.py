"""Lines of a weight module, wherever they come from: its sources joined, as float32, and only those asked for."""

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.lowering.modules import Module, Rows


def read_lines(module: Module, checkpoint: Checkpoint, first: int, last: int) -> np.ndarray:
    """float32 [last - first, K'] of an int4 or int8 module: lines `first` to `last` of its joined sources, zeros
    behind their ends in both directions."""
    _, width = module.padded
    for rows, begin, end in spans(module):
        if begin <= first and last <= end and width == module.shape[1]:  # as they are
            return _read(rows, checkpoint, first - begin, last - begin)
    lines = np.zeros((last - first, width), np.float32)
    for rows, begin, end in spans(module):
        low, high = max(first, begin), min(last, end)
        if low < high:
            lines[low - first : high - first, : module.shape[1]] = _read(rows, checkpoint, low - begin, high - begin)
    return lines


def spans(module: Module) -> Iterator[tuple[Rows, int, int]]:
    """Each source with the lines of the module that it gives, first and behind the last."""
    begin = 0
    for rows, count in zip(module.sources, module.lines, strict=True):
        yield rows, begin, begin + count
        begin += count


def read_source(rows: Rows, checkpoint: Checkpoint, first: int, last: int) -> np.ndarray:
    """Lines of one source, in its own dtype; of a half of Qwen3.5's q_proj, [heads, 2, head_dim] lines, those of that
    half."""
    if not rows.part:
        return checkpoint.lines(rows.tensor, first, last)
    size = checkpoint.config.head_dim
    pieces: list[np.ndarray] = []
    while first < last:
        head, within = divmod(first, size)
        count = min(last - first, size - within)
        begin = (2 * head + int(rows.part == "gate")) * size + within
        pieces.append(checkpoint.lines(rows.tensor, begin, begin + count))
        first += count
    return np.concatenate(pieces)


def _read(rows: Rows, checkpoint: Checkpoint, first: int, last: int) -> np.ndarray:
    """float32."""
    lines = read_source(rows, checkpoint, first, last)
    if lines.dtype == ml_dtypes.bfloat16:  # the upper half of a float32; a cast takes twice as long
        wide = lines.view(np.uint16).astype(np.uint32)
        wide <<= np.uint32(16)
        return wide.view(np.float32)
    with np.errstate(over="ignore"):  # beyond float32's range float64 becomes infinity, which the method refuses
        return lines.astype(np.float32, copy=False)
