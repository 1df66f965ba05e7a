"""int8, round to nearest in groups of 128: value = code * scale, code -127..127, scale >= 0.

The scale is the least bfloat16 that is not below the largest magnitude / 127: nothing is clipped, and every weight is
within half a step of its source. But numbers that came from codes and a scale go back to them, so that an export is
imported unchanged: where the largest code was 126, their scale lies one or two bfloat16 above the least.
"""

import numpy as np

from qpack_packager.quantize.groups import Groups, Quantized, in_blocks, round_up, widened

MOST = 127  # -128 is never used: the codes are symmetric


def quantize(weight: np.ndarray) -> Quantized:
    """Float [N, K] of any float dtype, K % 128 == 0 -> codes int8 and scales. Raises ValueError for NaN and
    infinity."""
    return in_blocks(weight, _block)


def _block(groups: Groups) -> Quantized:
    scales = round_up(np.maximum(groups.high, -groups.low) / MOST)
    for larger in (_next_up(scales), _next_up(_next_up(scales))):
        if (better := _are_codes(groups, larger)).any():
            scales = np.where(better & ~_are_codes(groups, scales), larger, scales)
    wide = widened(groups.in_units(scales))
    steps = groups.whole_steps(wide)
    codes = groups.codes(steps, np.int8)
    return groups.quantized(codes, scales, groups.squared_error(steps, wide))


def _are_codes(groups: Groups, scales: np.ndarray) -> np.ndarray:
    """bool [G]: every weight of the group is a whole number of steps already."""
    in_units = groups.in_units(scales)
    first = groups.values[0].reshape(len(scales), -1) / in_units[:, None]
    whole = (np.rint(first) == first).all(-1) & ~groups.empty
    if whole.any():  # hardly ever: the first four weights tell nearly all others apart
        wide = widened(in_units)
        whole &= groups.squared_error(groups.whole_steps(wide), wide) == 0
    return whole


def _next_up(scales: np.ndarray) -> np.ndarray:
    """The next larger bfloat16 of each, as float32."""
    return (scales.view(np.uint32) + np.uint32(1 << 16)).view(np.float32)
