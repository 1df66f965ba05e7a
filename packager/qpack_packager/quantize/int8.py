"""int8, round to nearest in groups of 128: value = code * scale, code -127..127, scale >= 0.

The scale is the least bfloat16 that is not below the largest magnitude / 127: nothing is clipped, and every weight is
within half a step of its source.
"""

import numpy as np

from qpack_packager.quantize.groups import Groups, Quantized, in_blocks, round_up, squared_error, whole_steps

MOST = 127  # -128 is never used: the codes are symmetric


def quantize(weight: np.ndarray) -> Quantized:
    """Float [N, K] of any float dtype, K % 128 == 0 -> codes int8 and scales. Raises ValueError for NaN and
    infinity."""
    return in_blocks(weight, _block)


def _block(groups: Groups) -> Quantized:
    scales = round_up(np.maximum(groups.high, -groups.low) / MOST)
    in_units = (scales / groups.unit).astype(np.float32)
    steps = whole_steps(groups.values, in_units, -MOST, MOST)
    return groups.quantized(steps.astype(np.int8), scales, squared_error(groups.values, steps, in_units))
