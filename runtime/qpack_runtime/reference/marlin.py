"""Marlin int4 words, scales and zero points back to numbers. The layout is described in docs/format.md."""

import numpy as np

GROUP = 128  # weights along K that share a scale
SYMMETRIC = 8  # the zero point where none is stored


def unpack(words: np.ndarray) -> np.ndarray:
    """int32 [K/16, 2*N] -> codes uint8 [K, N], 0..15."""
    k, n = words.shape[0] * 16, words.shape[1] // 2
    nibbles = words.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & np.uint32(15)
    axes = nibbles.astype(np.uint8).reshape(k // 16, n // 64, 8, 4, 4, 2, 2, 2)  # kt nt g t j p2 p1 p0
    return np.ascontiguousarray(axes.transpose(0, 7, 3, 5, 1, 4, 6, 2)).reshape(k, n)


def unpermute_scales(scales: np.ndarray) -> np.ndarray:
    """[K/128, N] from storage order, scales or zero points; the permutation within 64 columns is its own inverse."""
    groups, n = scales.shape
    return scales.reshape(groups, n // 64, 8, 8).transpose(0, 1, 3, 2).reshape(groups, n)


def dequantize(words: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None) -> np.ndarray:
    """float32 [K, N] = (code - zero) * scale, padding included; `zeros` int8 [K/128, N] in the order of the scales."""
    steps = unpack(words).astype(np.float32)
    steps -= np.float32(SYMMETRIC) if zeros is None else _lines(zeros)
    return steps * _lines(scales)


def _lines(stored: np.ndarray) -> np.ndarray:
    """float32 [K, N]: what each weight's group has."""
    return np.repeat(unpermute_scales(stored).astype(np.float32), GROUP, axis=0)
