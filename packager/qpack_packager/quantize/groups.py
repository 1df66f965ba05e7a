"""What the rounding methods share: groups of 128 along K with a bfloat16 scale each, and sums that no host changes.

Only elementwise IEEE operations and sums of a fixed order are used: the same bytes on every host and thread count.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

GROUP = 128  # weights along K that share a scale
BLOCK_WEIGHTS = 1 << 17  # weights at a time: their temporaries stay in a core's cache


@dataclass(frozen=True)
class Quantized:
    """Lines of a weight, rounded. Errors are per line, so that they add up the same however the lines are cut."""

    codes: np.ndarray  # [n, K], dtype and range as the method says
    scales: np.ndarray  # bfloat16 [n, K/128]; 0 where the whole group is 0
    squared_error: np.ndarray  # float64 [n]
    squared_weight: np.ndarray  # float64 [n]

    @property
    def relative_rms_error(self) -> float:
        return relative_rms(self.squared_error, self.squared_weight)


@dataclass(frozen=True)
class Groups:
    """Lines of a weight as a method sees them. `unit` is a power of two near each group's extreme: errors are counted
    in it, exactly, and no square leaves float32's range."""

    values: np.ndarray  # float32 [n, G, 128], in units
    high: np.ndarray  # float64 [n, G], the extremes as they are
    low: np.ndarray
    unit: np.ndarray  # float64 [n, G]

    def quantized(self, steps: np.ndarray, scales: np.ndarray, errors: np.ndarray) -> Quantized:
        """Codes [n, G, 128], scales float64 [n, G] and squared errors float32 [n, G] in units, put together."""
        in_weights = self.unit**2
        return Quantized(
            steps.reshape(len(steps), -1),
            (scales + 0.0).astype(ml_dtypes.bfloat16),  # which of 0 and -0 is the larger, processors disagree on
            fold(errors * in_weights),
            fold(fold_last(self.values * self.values) * in_weights),
        )


def relative_rms(squared_error: np.ndarray, squared_weight: np.ndarray) -> float:
    """Of the lines together."""
    whole = float(fold(squared_weight))
    return math.sqrt(float(fold(squared_error)) / whole) if whole else 0.0


def in_blocks(weight: np.ndarray, method: Callable[[Groups], Quantized]) -> Quantized:
    """`method` on float [n, K] of any float dtype, K % 128 == 0, a few lines at a time. Raises ValueError for NaN and
    infinity."""
    n, k = weight.shape
    rows = max(1, BLOCK_WEIGHTS // k)
    parts = [method(_groups(weight[first : first + rows])) for first in range(0, n, rows)]
    joined = (np.concatenate(arrays) for arrays in zip(*(vars(part).values() for part in parts), strict=True))
    return Quantized(*joined)


def _groups(weight: np.ndarray) -> Groups:
    n, k = weight.shape
    values = weight.astype(np.float32).reshape(n, k // GROUP, GROUP)
    high, low = values.max(-1).astype(np.float64), values.min(-1).astype(np.float64)
    if not np.isfinite(high - low).all():
        raise ValueError("holds NaN or infinity")
    unit = np.ldexp(1.0, np.clip(np.frexp(np.maximum(high, -low))[1], -126, 126))
    return Groups(values / unit.astype(np.float32)[..., None], high, low, unit)


def squared_error(values: np.ndarray, steps: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float32 [N, G, 128], whole steps of it and scales [N, G] -> float32 [N, G]. `steps` is overwritten."""
    steps *= scales[..., None]
    steps -= values
    steps *= steps
    return fold_last(steps)


def whole_steps(values: np.ndarray, scales: np.ndarray, least: int, most: int) -> np.ndarray:
    """float32 [N, G, 128] and scales [N, G] -> the nearest whole steps from `least` to `most`, float32."""
    steps = values / np.where(scales == 0, np.float32(1), scales)[..., None]
    np.rint(steps, out=steps)
    return np.clip(steps, least, most, out=steps)


def round_up(values: np.ndarray) -> np.ndarray:
    """Nonnegative float64 -> the least bfloat16 that is not smaller, as float64."""
    rounded = values.astype(np.float32).astype(ml_dtypes.bfloat16)
    next_up = (rounded.view(np.uint16) + np.uint16(1)).view(ml_dtypes.bfloat16)
    return np.where(rounded.astype(np.float64) < values, next_up, rounded).astype(np.float64)


def fold_last(values: np.ndarray) -> np.ndarray:
    """Sum over the last axis (a power of two long) by halving: an order that no instruction set changes."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


def fold(values: np.ndarray) -> np.ndarray:
    """The float64 sum over the last axis, of any length, in the same fixed order."""
    length = values.shape[-1]
    padded = np.zeros((*values.shape[:-1], 1 << max(0, length - 1).bit_length()), np.float64)
    padded[..., :length] = values
    return fold_last(padded)
