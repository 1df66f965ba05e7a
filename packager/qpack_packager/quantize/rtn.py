"""int4, round to nearest in groups of 128 with signed scales: value = (code - 8) * scale, code 0..15.

A signed scale turns the group's larger extreme towards code -8, the side with one more code. The smallest scale that
keeps both extremes within half a step of a code is max(|larger| / 8.5, |smaller| / 7.5); from there a small grid
upwards is searched for the least squared error. So every weight is within half a step of its source, and none is
clipped further.
"""

import numpy as np

from qpack_packager.quantize.groups import Groups, Quantized, in_blocks, round_up, squared_error, whole_steps

GRID = tuple(np.float64(1 + step / 32) for step in range(8))  # multiples of the smallest scale


def quantize(weight: np.ndarray) -> Quantized:
    """Float [N, K] of any float dtype, K % 128 == 0 -> codes uint8 0..15 and scales of either sign. Raises ValueError
    for NaN and infinity."""
    return in_blocks(weight, _block)


def _block(groups: Groups) -> Quantized:
    sign = np.where(groups.high >= -groups.low, -1.0, 1.0)
    larger, smaller = np.maximum(groups.high, -groups.low), np.minimum(groups.high, -groups.low)
    least = np.maximum(larger / 8.5, smaller / 7.5)
    scales, best = np.zeros(least.shape), np.full(least.shape, np.inf, np.float32)
    for factor in GRID:
        candidate = sign * round_up(least * factor)
        in_units = (candidate / groups.unit).astype(np.float32)
        total = squared_error(groups.values, whole_steps(groups.values, in_units, -8, 7), in_units)
        better = total < best
        best, scales = np.where(better, total, best), np.where(better, candidate, scales)
    steps = whole_steps(groups.values, (scales / groups.unit).astype(np.float32), -8, 7)
    return groups.quantized((steps + 8).astype(np.uint8), scales, best)
