"""Round to nearest in groups of 128 with signed scales: value = (code - 8) * scale, code 0..15.

A signed scale turns the group's larger extreme towards code -8, the side with one more code. The smallest scale that
keeps both extremes within half a step of a code is max(|larger| / 8.5, |smaller| / 7.5); from there a small grid
upwards is searched for the least squared error. So every weight is within half a step of its source, and none is
clipped further.

Only elementwise IEEE operations and sums of a fixed order are used: the same bytes on every host and thread count.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from qpack_packager.quantize.marlin import GROUP

GRID = tuple(np.float64(1 + step / 32) for step in range(8))  # multiples of the smallest scale
BLOCK_WEIGHTS = 1 << 18  # weights per task: a few MB of temporaries whatever the tensor


@dataclass(frozen=True)
class Quantized:
    codes: np.ndarray  # uint8 [N, K], 0..15
    scales: np.ndarray  # bfloat16 [N, K/128], negative or positive; 0 where the whole group is 0
    squared_error: float
    squared_weight: float

    @property
    def relative_rms_error(self) -> float:
        return math.sqrt(self.squared_error / self.squared_weight) if self.squared_weight else 0.0


def quantize(weight: np.ndarray) -> Quantized:
    """Float [N, K] of any float dtype, K % 128 == 0 -> codes and scales. Raises ValueError for NaN and infinity."""
    n, k = weight.shape
    rows = max(1, BLOCK_WEIGHTS // k)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        parts = list(pool.map(lambda first: _block(weight[first : first + rows]), range(0, n, rows)))
    codes, scales, errors, weights = zip(*parts, strict=True)
    return Quantized(np.concatenate(codes), np.concatenate(scales), float(_fold(errors)), float(_fold(weights)))


def _block(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.float64, np.float64]:
    n, k = weight.shape
    groups = weight.astype(np.float32).reshape(n, k // GROUP, GROUP)
    high, low = groups.max(-1).astype(np.float64), groups.min(-1).astype(np.float64)
    if not np.isfinite(high - low).all():
        raise ValueError("holds NaN or infinity")
    sign = np.where(high >= -low, -1.0, 1.0)
    larger, smaller = np.maximum(high, -low), np.minimum(high, -low)
    least = np.maximum(larger / 8.5, smaller / 7.5)
    # Errors are counted in units of a power of two near the extreme: exact, and no square leaves float32's range.
    unit = np.ldexp(1.0, np.clip(np.frexp(larger)[1], -126, 126))
    groups = groups / unit.astype(np.float32)[..., None]
    scales, best = np.zeros(least.shape), np.full(least.shape, np.inf, np.float32)
    for factor in GRID:
        candidate = sign * round_up(least * factor)
        total = _squared_error(groups, (candidate / unit).astype(np.float32))
        better = total < best
        best, scales = np.where(better, total, best), np.where(better, candidate, scales)
    codes = (_steps(groups, (scales / unit).astype(np.float32)) + 8).astype(np.uint8).reshape(n, k)
    in_weights = unit.ravel() ** 2
    errors, weights = best.ravel() * in_weights, fold_last(groups * groups).ravel() * in_weights
    return codes, scales.astype(ml_dtypes.bfloat16), _fold(errors), _fold(weights)


def _squared_error(groups: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float32 [n, G, 128] and scales [n, G] -> float32 [n, G]."""
    error = _steps(groups, scales)
    error *= scales[..., None]
    error -= groups
    error *= error
    return fold_last(error)


def _steps(groups: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float32 [n, G, 128] and scales [n, G] -> the nearest whole steps, -8..7."""
    steps = groups / np.where(scales == 0, np.float32(1), scales)[..., None]
    np.rint(steps, out=steps)
    return np.clip(steps, -8, 7, out=steps)


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


def _fold(values: np.ndarray | tuple[np.float64, ...]) -> np.float64:
    """The float64 sum of a vector in the same fixed order."""
    vector = np.asarray(values, np.float64)
    padded = np.zeros(1 << max(0, len(vector) - 1).bit_length(), np.float64)
    padded[: len(vector)] = vector
    return np.float64(fold_last(padded))
