"""The Marlin layout of int4 codes: one 128-bit load gives a GPU lane four mma.m16n8k16 B fragments.

Layout published with Marlin (Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on LLMs",
2024). W is [K, N], the transpose of a Linear's weight; value = (code - 8) * scale. With lane = 4*g + t, the word
128*nt + 4*lane + j of line kt holds in nibble p = p0 + 2*p1 + 4*p2 (bits 4p .. 4p+3) the code of

    k = 16*kt + 8*p0 + 2*t + p2        n = 64*nt + 16*j + 8*p1 + g
"""

import numpy as np

TILE_N = 64


def pack(codes: np.ndarray) -> np.ndarray:
    """uint8 [K, N] with values 0..15 -> int32 [K/16, 2*N]. K % 16 == 0, N % 64 == 0."""
    k, n = codes.shape
    axes = codes.reshape(k // 16, 2, 4, 2, n // 64, 4, 2, 8)  # kt p0 t p2 nt j p1 g
    nibbles = axes.transpose(0, 4, 7, 2, 5, 3, 6, 1).reshape(-1, 8)  # kt nt g t j | p2 p1 p0
    words = np.zeros(len(nibbles), np.uint32)
    for p in range(8):
        words |= nibbles[:, p].astype(np.uint32) << np.uint32(4 * p)
    return words.reshape(k // 16, 2 * n).view(np.int32)


def unpack(words: np.ndarray) -> np.ndarray:
    """int32 [K/16, 2*N] -> uint8 [K, N]: what `pack` was given."""
    lines, width = words.shape
    flat = words.view(np.uint32).reshape(-1)
    nibbles = np.empty((len(flat), 8), np.uint8)
    for p in range(8):
        nibbles[:, p] = flat >> np.uint32(4 * p) & np.uint32(15)
    axes = nibbles.reshape(lines, width // 128, 8, 4, 4, 2, 2, 2)  # kt nt g t j p2 p1 p0
    return axes.transpose(0, 7, 3, 5, 1, 4, 6, 2).reshape(16 * lines, width // 2)  # kt p0 t p2 nt j p1 g


def permute_scales(scales: np.ndarray) -> np.ndarray:
    """[K/128, N] -> stored[64b + 8g + m] = scale[64b + g + 8m], the order in which a lane needs them."""
    groups, n = scales.shape
    return np.ascontiguousarray(scales.reshape(groups, n // 64, 8, 8).transpose(0, 1, 3, 2)).reshape(groups, n)


def unpermute_scales(stored: np.ndarray) -> np.ndarray:
    """What `permute_scales` was given; the permutation is its own inverse."""
    return permute_scales(stored)
