"""The Marlin layout of int4 codes: one 128-bit load gives a GPU lane four mma.m16n8k16 B fragments.

Layout published with Marlin (Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on LLMs",
2024). W is [K, N], the transpose of a Linear's weight; value = (code - 8) * scale. With lane = 4*g + t, the word
128*nt + 4*lane + j of line kt holds in nibble p = p0 + 2*p1 + 4*p2 (bits 4p .. 4p+3) the code of

    k = 16*kt + 8*p0 + 2*t + p2        n = 64*nt + 16*j + 8*p1 + g
"""

import numpy as np

TILE_N = 64
_EVEN = np.uint64(0x00FF00FF00FF00FF)  # every other byte of eight: those with p2 = 0
_LOW = np.uint64(0x0F0F0F0F0F0F0F0F)  # the low half of each


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
    """int32 [K/16, 2*N] -> uint8 [K, N]: what `pack` was given, as the transpose of codes that lie line after line."""
    lines, width = words.shape
    tiles = words.reshape(lines, width // 128, 8, 4, 4).transpose(1, 4, 2, 0, 3)  # nt j g kt t
    halves = np.ascontiguousarray(tiles).view(np.uint16).reshape(*tiles.shape, 2)
    even, odd = (np.ascontiguousarray(halves[..., p2]).view(np.uint64)[..., 0] for p2 in range(2))  # nt j g kt
    first = even & _EVEN
    first |= (odd & _EVEN) << np.uint64(8)
    second = (even >> np.uint64(8)) & _EVEN
    second |= odd & ~_EVEN
    eights = np.empty((width // 128, 4, 2, 8, lines, 2), np.uint64)  # nt j p1 g kt p0
    for p1, nibbles in enumerate((first, second)):
        eights[:, :, p1, ..., 0] = nibbles & _LOW
        eights[:, :, p1, ..., 1] = (nibbles >> np.uint64(4)) & _LOW
    return eights.view(np.uint8).reshape(width // 2, 16 * lines).T


def permute_scales(scales: np.ndarray) -> np.ndarray:
    """[K/128, N] -> stored[64b + 8g + m] = scale[64b + g + 8m], the order in which a lane needs them."""
    groups, n = scales.shape
    return np.ascontiguousarray(scales.reshape(groups, n // 64, 8, 8).transpose(0, 1, 3, 2)).reshape(groups, n)


def unpermute_scales(stored: np.ndarray) -> np.ndarray:
    """What `permute_scales` was given; the permutation is its own inverse."""
    return permute_scales(stored)
