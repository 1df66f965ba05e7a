"""What the rounding methods share: groups of 128 along K with a bfloat16 scale each, and sums that no host changes.

Only elementwise IEEE operations and sums of a fixed order are used: the same bytes on every host and thread count.
"""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import ml_dtypes
import numpy as np

GROUP = 128  # weights along K that share a scale
BLOCK_WEIGHTS = 1 << 18  # weights per task: a few MB of temporaries whatever the tensor


@dataclass(frozen=True)
class Quantized:
    codes: np.ndarray  # [N, K], dtype and range as the method says
    scales: np.ndarray  # bfloat16 [N, K/128]; 0 where the whole group is 0
    squared_error: float
    squared_weight: float

    @property
    def relative_rms_error(self) -> float:
        return math.sqrt(self.squared_error / self.squared_weight) if self.squared_weight else 0.0


@dataclass(frozen=True)
class Groups:
    """Lines of a weight as a method sees them. `unit` is a power of two near each group's extreme: errors are counted
    in it, exactly, and no square leaves float32's range."""

    values: np.ndarray  # float32 [N, G, 128], in units
    high: np.ndarray  # float64 [N, G], the extremes as they are
    low: np.ndarray
    unit: np.ndarray  # float64 [N, G]

    def quantized(self, steps: np.ndarray, scales: np.ndarray, errors: np.ndarray) -> Quantized:
        """Codes [N, G, 128], scales float64 [N, G] and squared errors float32 [N, G] in units, put together."""
        in_weights = self.unit.ravel() ** 2
        return Quantized(
            steps.reshape(len(steps), -1),
            (scales + 0.0).astype(ml_dtypes.bfloat16),  # which of 0 and -0 is the larger, processors disagree on
            float(fold(errors.ravel() * in_weights)),
            float(fold(fold_last(self.values * self.values).ravel() * in_weights)),
        )


def in_blocks(weight: np.ndarray, method: Callable[[Groups], Quantized]) -> Quantized:
    """`method` on float [N, K] of any float dtype, K % 128 == 0, some lines at a time on every processor. Raises
    ValueError for NaN and infinity."""
    n, k = weight.shape
    rows = max(1, BLOCK_WEIGHTS // k)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        parts = list(pool.map(lambda first: method(_groups(weight[first : first + rows])), range(0, n, rows)))
    return Quantized(
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scales for part in parts]),
        float(fold([part.squared_error for part in parts])),
        float(fold([part.squared_weight for part in parts])),
    )


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


def fold(values: np.ndarray | list[float]) -> np.float64:
    """The float64 sum of a vector in the same fixed order."""
    vector = np.asarray(values, np.float64)
    padded = np.zeros(1 << max(0, len(vector) - 1).bit_length(), np.float64)
    padded[: len(vector)] = vector
    return np.float64(fold_last(padded))
