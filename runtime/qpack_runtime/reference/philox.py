"""The sampler's noise: standard Gumbel numbers that depend on (seed, position, id) and on nothing else.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a counter into random words
without state, so a token's noise needs no history and no neighbours. Everything after it is float32 multiplication and
addition, each rounded on its own, with our own logarithm: the same bits on every host and device.
"""

import numpy as np

F32 = np.float32
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)

# Minimax polynomials, constant term first; the figure is the largest relative error of the polynomial itself.
LOG1P = (  # log(1 + f) / f on [sqrt(1/2) - 1, sqrt(2) - 1], 7.5e-9
    1.0, -0.49999988079071045, 0.33333325386047363, -0.25001585483551025, 0.2000207155942917, -0.16609126329421997,
    0.14180079102516174, -0.13240842521190643, 0.129141703248024, -0.07638592272996902,
)  # fmt: skip
MINUS_LOG1M = (  # -log(1 - u) / u on [0, 1/4], 3.3e-9
    1.0, 0.5000000596046448, 0.33332714438438416, 0.2501929700374603, 0.1970776468515396, 0.1902793049812317,
    0.04079221934080124, 0.3349906802177429,
)  # fmt: skip


def philox4x32(counter: tuple, key: tuple[int, int]) -> list[np.ndarray]:
    """Ten rounds of Philox4x32: four uint32 arrays from four counter words (arrays or ints) and two key words."""
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (b >> HALF) ^ c1 ^ np.uint64(k0), b & LOW, (a >> HALF) ^ c3 ^ np.uint64(k1), a & LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [word.astype(np.uint32) for word in np.broadcast_arrays(c0, c1, c2, c3)]


def horner(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    """The polynomial at float32 x, rounded after every multiplication and every addition."""
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + F32(coefficient)
    return value


def log(x: np.ndarray) -> np.ndarray:
    """log of positive normal float32 numbers, within 2e-7 relative: x = 2^e (1 + f), log x = e log 2 + log(1 + f)."""
    bits = x.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> np.int32(23)  # 0x3F3504F3 is sqrt(1/2), so 1 + f lies around 1
    f = (bits - (exponent << np.int32(23))).view(F32) - F32(1)
    return exponent.astype(F32) * F32(0.6931471805599453) + f * horner(f, LOG1P)


def gumbel(ids: np.ndarray, position: int, key: tuple[int, int]) -> np.ndarray:
    """Standard Gumbel noise, float32 [n], of token ids [n] at a position; `key` is the seed's low and high 32 bits.

    Id i takes word i % 4 of the Philox block with counter (i / 4, position, 0, 0).
    """
    ids = np.asarray(ids, np.int64)
    words = np.stack(philox4x32((ids >> 2, position, 0, 0), key))
    return gumbel_of_words(np.take_along_axis(words, (ids & 3)[None], axis=0)[0])


def gumbel_of_words(x: np.ndarray) -> np.ndarray:
    """uint32 words -> float32 noise: u = (x + 1/2) 2^-32 is uniform, -log(1 - u) exponential, and -log of that Gumbel.

    The winners of a draw have small u, where a float32 u is finest: hence log(1 - u) and not log(u), and below 1/4 a
    polynomial in u, which never forms 1 - u. The largest u is 1 - 2^-24, so the noise lies between -2.82 and 22.88.
    """
    u = np.minimum((x.astype(F32) + F32(0.5)) * F32(2.0**-32), F32(1 - 2.0**-24))
    small = u < F32(0.25)
    exponential = np.where(small, u * horner(u, MINUS_LOG1M), -log(np.where(small, F32(0.5), F32(1) - u)))
    return -log(exponential)
