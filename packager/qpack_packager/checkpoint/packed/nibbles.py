"""Eight 4-bit codes in a 32-bit word, taken apart in two ways that share no step, so that each proves the other."""

import numpy as np

IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)


def by_shifts(words: np.ndarray, order: tuple[int, ...] = IN_ORDER, axis: int = -1) -> np.ndarray:
    """int32 [..., W, ...] -> uint8 [..., 8 * W, ...] along `axis`. Bits 4p to 4p + 3 of word w are element
    8 * w + order[p]."""
    before, behind = _around(words, axis)
    unsigned = words.view(np.uint32)
    codes = np.empty((*before, 8, *behind), np.uint8)
    for p, element in enumerate(order):
        codes[(*[slice(None)] * len(before), element)] = (unsigned >> np.uint32(4 * p)) & np.uint32(15)
    return codes.reshape(*before[:-1], 8 * before[-1], *behind)


def by_bytes(words: np.ndarray, places: tuple[int, ...] = IN_ORDER, axis: int = -1) -> np.ndarray:
    """int32 [..., W, ...] -> uint8 [..., 8 * W, ...] along `axis`. Element 8 * w + i is half places[i] of the eight
    halves of the bytes of word w; the low half of a byte comes first, and the low byte of a word."""
    before, behind = _around(words, axis)
    bytes_ = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    halves = np.stack([bytes_ & 15, bytes_ >> 4], axis=-1).reshape(*words.shape, 8)
    codes = np.moveaxis(halves, -1, len(before))
    if places != IN_ORDER:
        codes = codes.take(places, axis=len(before))
    return codes.reshape(*before[:-1], 8 * before[-1], *behind)


def _around(words: np.ndarray, axis: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes up to `axis`, and those behind it."""
    behind = axis % words.ndim + 1
    return words.shape[:behind], words.shape[behind:]
