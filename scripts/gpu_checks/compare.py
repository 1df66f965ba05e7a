"""How far a buffer may be from the reference: a few units in the last place, and a floor for what sums leave behind.

    |got - wanted|  <=  2 ulp * |wanted|  +  floor * the largest |wanted| of its line

A line is one entry of the first axis: a row, a slot, a position of the cache. The ulp is that of the dtype that the
buffer is stored in. The floor is for sums in another order: 2e-5 in float32 programs, 2.5e-4 where tensor cores
multiply 16-bit numbers. It is one ulp of the activations where a kernel keeps 16-bit values that no buffer shows, since
one of them rounded the other way moves a whole line. Integers are equal.
"""

from dataclasses import dataclass

import numpy as np

ULP = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # of 1
FLOOR = {"float32": 2e-5, "float16": 2.5e-4, "bfloat16": 2.5e-4}  # by dtype of the activations


@dataclass(frozen=True)
class Difference:
    """`relative` to the largest value of its line, `share` of what is allowed: up to 1 is good."""

    relative: float
    share: float
    place: tuple[int, ...]  # of the largest share


def floor_of(activation: str, *, hidden: bool) -> float:
    """`hidden`: the run keeps values of the activation dtype to itself."""
    return max(FLOOR[activation], ULP[activation] if hidden and activation != "float32" else 0.0)


def compare(got: np.ndarray, wanted: np.ndarray, dtype: str, floor: float, *, garbage: bool = False) -> Difference:
    """The worst of two arrays of the same shape. Another integer, and any NaN or infinity, is infinitely far away; but
    with `garbage` entries of the same bits agree whatever they are: state that neither wrote may hold anything."""
    same = _bits(got) == _bits(wanted)
    if dtype in ULP and not garbage:
        same &= np.isfinite(wanted)
    if same.all():
        return Difference(0.0, 0.0, ())
    if dtype not in ULP:
        return Difference(np.inf, np.inf, _place(~same))
    lines = np.flatnonzero(~same.reshape(len(same), -1).all(1))
    same = same[lines]
    mine, theirs = (array[lines].astype(np.float64) for array in (got, wanted))
    far = np.where(same, 0.0, np.abs(mine - theirs))
    size = np.where(np.isfinite(theirs), np.abs(theirs), 0.0)
    largest = size.reshape(len(size), -1).max(1).reshape(-1, *[1] * (size.ndim - 1))
    allowed = np.maximum(2 * ULP[dtype] * size + floor * largest, np.finfo(np.float32).tiny)
    share = np.where(np.isfinite(far), far / allowed, np.inf)
    relative = np.where(np.isfinite(far), far / np.maximum(largest, np.finfo(np.float32).tiny), np.inf)
    line, *rest = _place(share == share.max())
    return Difference(float(relative.max()), float(share.max()), (int(lines[line]), *rest))


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _place(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(index) for index in np.argwhere(mask)[0])
