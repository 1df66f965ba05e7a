"""Eight 4-bit codes in a 32-bit word, taken apart in two ways that share no step, so that each proves the other."""

import numpy as np

IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)


def by_shifts(words: np.ndarray, order: tuple[int, ...] = IN_ORDER) -> np.ndarray:
    """int32 [..., W] -> uint8 [..., 8 * W]. Bits 4p to 4p + 3 of word w are element 8 * w + order[p]."""
    unsigned = words.view(np.uint32)
    codes = np.empty((*words.shape, 8), np.uint8)
    for p, element in enumerate(order):
        codes[..., element] = (unsigned >> np.uint32(4 * p)) & np.uint32(15)
    return codes.reshape(*words.shape[:-1], 8 * words.shape[-1])


def by_bytes(words: np.ndarray, places: tuple[int, ...] = IN_ORDER) -> np.ndarray:
    """int32 [..., W] -> uint8 [..., 8 * W]. Element 8 * w + i is half places[i] of the eight halves of the bytes of
    word w; the low half of a byte comes first, and the low byte of a word."""
    halves = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    halves = np.stack([halves & 15, halves >> 4], axis=-1).reshape(*words.shape, 8)
    return halves[..., places].reshape(*words.shape[:-1], 8 * words.shape[-1])
