"""The rotary table, computed at build so that every executor reads the same bits.

inverse frequency and angle are rounded to float32 as transformers does (they decide the angle at large positions); the
cosine of that angle is computed with IEEE operations only, because the sine of math libraries differs between hosts.
"""

import math

import numpy as np

_HALF_PI = 1.5707963267948966
_HALF_PI_HIGH = 1.570796325802803  # 30 bits, so that a product with a quadrant number below 2^23 is exact
_HALF_PI_LOW = 9.920935796805404e-10  # pi/2 - high, to double precision


def rope_table(context: int, rotary_dim: int, theta: float) -> np.ndarray:
    """float32 [context, 2, rotary_dim / 2]: cosines and sines of position * theta^(-2i / rotary_dim)."""
    exponents = [np.float32(i) / np.float32(rotary_dim) for i in range(0, rotary_dim, 2)]
    inverse = np.array([np.float32(1) / np.float32(theta ** float(e)) for e in exponents], np.float32)
    angles = np.arange(context, dtype=np.float32)[:, None] * inverse
    cosine, sine = cos_sin(angles.astype(np.float64))
    return np.stack([cosine, sine], axis=1).astype(np.float32)


def cos_sin(angles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float64 angles in [0, 2^22] -> cosine and sine within 1e-15, by reduction to a quadrant and the Taylor series."""
    quadrant = np.rint(angles / _HALF_PI)
    rest = (angles - quadrant * _HALF_PI_HIGH) - quadrant * _HALF_PI_LOW
    square = rest * rest
    cosine, sine = np.zeros_like(rest), np.zeros_like(rest)
    for n in range(9, -1, -1):
        cosine = cosine * square + (-1) ** n / math.factorial(2 * n)
        sine = sine * square + (-1) ** n / math.factorial(2 * n + 1)
    sine = sine * rest
    turn = quadrant.astype(np.int64) & 3
    return (
        np.choose(turn, [cosine, -sine, -cosine, sine]),
        np.choose(turn, [sine, cosine, -sine, -cosine]),
    )
