"""The Marlin layout of int4 codes: one 128-bit load gives a GPU lane four mma.m16n8k16 B fragments.

Layout published with Marlin (Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on LLMs",
2024). W is [K, N], the transpose of a Linear's weight; value = (code - 8) * scale. With lane = 4*g + t, the word
128*nt + 4*lane + j of line kt holds in nibble p = p0 + 2*p1 + 4*p2 (bits 4p .. 4p+3) the code of

    k = 16*kt + 8*p0 + 2*t + p2        n = 64*nt + 16*j + 8*p1 + g
"""

import numpy as np

TILE_N = 64
_EVEN = np.uint64(0x00FF00FF00FF00FF)  # every other byte of eight: those with p2 = 0


def pack(codes: np.ndarray) -> np.ndarray:
    """uint8 [K, N] with values 0..15 -> int32 [K/16, 2*N]. K % 16 == 0, N % 64 == 0. Fastest for the transpose of codes
    that lie line after line, [N, K]: eight of them, t and p2, are a number of 64 bits."""
    k, n = codes.shape
    eights = np.ascontiguousarray(codes.T).view(np.uint64).reshape(n // 64, 4, 2, 8, k // 16, 2)  # nt j p1 g kt p0
    nibbles = eights[..., 1] << np.uint64(4)
    nibbles |= eights[..., 0]
    first, second = nibbles[:, :, 0], nibbles[:, :, 1]  # p1
    even = second & _EVEN
    even <<= np.uint64(8)
    even |= first & _EVEN
    odd = first >> np.uint64(8)
    odd &= _EVEN
    odd |= second & ~_EVEN
    halves = np.empty((n // 64, 4, 8, k // 16, 4, 2), np.uint16)  # nt j g kt t p2
    halves[..., 0] = even.view(np.uint16).reshape(halves.shape[:-1])
    halves[..., 1] = odd.view(np.uint16).reshape(halves.shape[:-1])
    words = halves.view(np.int32)[..., 0].transpose(3, 0, 2, 4, 1)  # kt nt g t j
    return np.ascontiguousarray(words).reshape(k // 16, 2 * n)


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
