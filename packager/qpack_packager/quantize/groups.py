"""What the rounding methods share: groups of 128 along K with a bfloat16 scale each, and sums that no host changes.

Only elementwise IEEE operations and sums of a fixed order are used: the same bytes on every host and thread count. The
groups lie side by side, so that whatever is done to each of them runs through memory from end to end.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

GROUP = 128  # weights along K that share a scale
BLOCK_WEIGHTS = 1 << 19  # weights at a time: fewer, and threads wait for each other; more, and they leave the caches
_QUAD = 4  # weights that stay neighbours when groups are laid side by side: 16 bytes are moved as fast as 4
_BUFFER = 8192  # numpy's own, in elements: an operand that it repeats and that is shorter goes through it, slowly


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
    """The G groups of n lines as a method sees them. `unit` is a power of two near each group's extreme: errors are
    counted in it, exactly, and no square leaves float32's range. To a method a group of zeros has the extremes 1 and 0,
    so that no scale is 0."""

    lines: int  # n
    values: np.ndarray  # float32 [32, 4 G], in units; row q holds the weights 4q to 4q + 3 of every group
    high: np.ndarray  # float64 [G], the extremes, not in units
    low: np.ndarray
    unit: np.ndarray  # float64 [G]
    empty: np.ndarray  # bool [G]: all weights are 0

    def in_units(self, scales: np.ndarray) -> np.ndarray:
        """float32 [..., G], exact: scales are bfloat16, and units powers of two."""
        return scales * (1 / self.unit).astype(np.float32)

    def whole_steps(self, wide: np.ndarray) -> np.ndarray:
        """float32 [32, 4 G]: the values as the nearest whole numbers of steps. `wide` is what widened makes of scales
        in units."""
        steps = self.values.reshape(-1, len(wide)) / wide
        return np.rint(steps, out=steps).reshape(self.values.shape)

    def squared_error(self, steps: np.ndarray, wide: np.ndarray) -> np.ndarray:
        """float32 [G], in units, of whole steps. They are overwritten."""
        weights = steps.reshape(-1, len(wide))
        weights *= wide
        steps -= self.values
        steps *= steps
        return _fold_groups(steps)

    def codes(self, steps: np.ndarray, dtype: type[np.integer[Any]]) -> np.ndarray:
        """Whole steps as bytes, for `quantized`. Rows whose distance is a power of two would share few places in the
        processor's caches, and be turned into lines at a third of the speed."""
        length = steps.shape[1]
        codes = np.empty((len(steps), length + 64), dtype)[:, :length]
        np.copyto(codes, steps, casting="unsafe")
        return codes

    def quantized(self, codes: np.ndarray, scales: np.ndarray, errors: np.ndarray) -> Quantized:
        """Codes [32, 4 G] made by `codes`, scales float32 [G] and squared errors float32 [G] in units, in lines."""
        quads = np.ascontiguousarray(codes.view(np.uint32).T)
        weights = _fold_groups(self.values * self.values)
        in_weights = self.unit**2
        return Quantized(
            quads.view(codes.dtype).reshape(self.lines, -1),
            np.where(self.empty, np.float32(0), scales).astype(ml_dtypes.bfloat16).reshape(self.lines, -1),
            fold((errors * in_weights).reshape(self.lines, -1)),
            fold((weights * in_weights).reshape(self.lines, -1)),
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
    quads = np.ascontiguousarray(weight, np.float32).view(np.complex128)  # 16 bytes as numpy knows them
    values = np.ascontiguousarray(quads.reshape(-1, GROUP // _QUAD).T).view(np.float32)
    high, low = _extreme(np.maximum, values), _extreme(np.minimum, values)
    if not np.isfinite(high - low).all():
        raise ValueError("holds NaN or infinity")
    empty = (high == 0) & (low == 0)
    high[empty] = 1
    unit = np.ldexp(1.0, np.clip(np.frexp(np.maximum(high, -low))[1], -126, 126))
    groups = Groups(len(weight), values, high, low, unit, empty)
    wide = widened(groups.in_units(np.ones(len(unit), np.float32)))
    rows = values.reshape(-1, len(wide))
    rows *= wide
    return groups


def widened(numbers: np.ndarray) -> np.ndarray:
    """float32 [G] -> float32 [r * 4 G]: what belongs to the group of each weight, for r rows of Groups.values."""
    repeats = next((r for r in (1, 2, 4, 8, 16) if r * _QUAD * len(numbers) >= _BUFFER), GROUP // _QUAD)
    wide = np.empty((repeats, len(numbers), _QUAD), np.float32)
    for place in range(_QUAD):
        wide[..., place] = numbers
    return wide.reshape(-1)


def _extreme(choose: np.ufunc, values: np.ndarray) -> np.ndarray:
    """float64 [G]: np.maximum or np.minimum of every group."""
    first, second, third, fourth = choose.reduce(values, axis=0).reshape(-1, _QUAD).T
    return choose(choose(first, third), choose(second, fourth)).astype(np.float64)


def _fold_groups(values: np.ndarray) -> np.ndarray:
    """float32 [32, 4 G] -> [G], in the order of fold_last. `values` is overwritten."""
    half = len(values) // 2
    while half:
        values[:half] += values[half : 2 * half]
        half //= 2
    first, second, third, fourth = values[0].reshape(-1, _QUAD).T
    return (first + third) + (second + fourth)


def round_up(values: np.ndarray) -> np.ndarray:
    """Nonnegative float64 -> the least bfloat16 that is not smaller, as float32."""
    rounded = values.astype(np.float32)
    bits = rounded.view(np.uint32)
    bits += rounded < values  # to the next float32
    bits += np.uint32(0xFFFF)
    bits &= np.uint32(0xFFFF0000)
    return rounded


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
