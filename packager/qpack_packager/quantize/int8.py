"""int8, round to nearest in groups of 128: value = code * scale, code -127..127, scale >= 0.

The scale is the least bfloat16 that is not below the largest magnitude / 127: nothing is clipped, and every weight is
within half a step of its source.
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
    wide = widened(groups.in_units(scales))
    steps = groups.whole_steps(wide)
    codes = steps.astype(np.int8)
    return groups.quantized(codes, scales, groups.squared_error(steps, wide))
