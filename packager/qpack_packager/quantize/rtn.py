"""int4, round to nearest in groups of 128 with signed scales: value = (code - 8) * scale, code 0..15.

A signed scale turns the group's larger extreme towards code -8, the side with one more code. The smallest scale that
keeps both extremes within half a step of a code is max(|larger| / 8.5, |smaller| / 7.5); from there a small grid
upwards is searched for the least squared error. So every weight is within half a step of its source, and none is
clipped further.
"""

import numpy as np

from qpack_packager.quantize.groups import Groups, Quantized, in_blocks, round_up, widened

GRID = 1 + np.arange(4) / 20  # multiples of the smallest scale; twice as many gain less than a thousandth


def quantize(weight: np.ndarray) -> Quantized:
    """Float [N, K] of any float dtype, K % 128 == 0 -> codes uint8 0..15 and scales of either sign. Raises ValueError
    for NaN and infinity."""
    return in_blocks(weight, _block)


def _block(groups: Groups) -> Quantized:
    sign = np.where(groups.high >= -groups.low, np.float32(-1), np.float32(1))
    larger, smaller = np.maximum(groups.high, -groups.low), np.minimum(groups.high, -groups.low)
    least = np.maximum(larger / 8.5, smaller / 7.5)
    scales = sign * round_up(least * GRID[:, None])  # [4, G]
    in_units, errors = groups.in_units(scales), np.empty_like(scales)
    for step, candidate in enumerate(in_units):
        wide = widened(candidate)
        errors[step] = groups.squared_error(groups.whole_steps(wide), wide)
    best = errors.argmin(0), np.arange(errors.shape[1])
    steps = groups.whole_steps(widened(in_units[best]))  # from -8 to 8: exactly 7.5 are 8, as far from it as 7 is
    steps += 8
    codes = groups.codes(steps, np.uint8)
    codes -= codes >> 4  # 16 -> 15, as bytes: the minimum of floats takes three times as long
    return groups.quantized(codes, scales[best], errors[best])
