"""Axes of charts: from a value to its place along the axis, 0 to 1, and the round values that are written there."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Text = Callable[[float], str]


@dataclass(frozen=True)
class Axis:
    """`low` is at 0, `high` at 1; both above zero on a logarithmic axis."""

    low: float
    high: float
    ticks: tuple[float, ...]  # ascending
    text: Text  # of a tick
    title: str = ""
    log: bool = False

    def at(self, value: float) -> float:
        """Where `value` lies; a value beyond an end lies at that end."""
        low, high, value = (math.log(x) if self.log else x for x in (self.low, self.high, max(value, self.low)))
        return min((value - low) / (high - low), 1.0)


def linear(values: Iterable[float], text: Text, title: str = "", *, count: int = 4) -> Axis:
    """From zero to a round value that no value is above, with about `count` steps."""
    most = max(values, default=0.0)
    step = _round_up(most / count) if most > 0 else 1.0
    steps = max(1, math.ceil(most / step - 1e-9))
    return Axis(0.0, steps * step, tuple(step * i for i in range(steps + 1)), text, title)


def within(low: float, high: float, text: Text, title: str = "", *, count: int = 4, whole: bool = False) -> Axis:
    """From `low` to `high` exactly, with round ticks between; with `whole` on whole numbers only."""
    step = _round_up((high - low) / count)
    if whole:
        step = max(1.0, math.ceil(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(step * i for i in range(first, last + 1)), text, title)


def logarithmic(values: Iterable[float], text: Text, title: str = "") -> Axis:
    """From the last of 1, 2, 5, 10, ... below all values above zero to the first above them."""
    above = [value for value in values if value > 0] or [1.0]
    least, most = min(above), max(above)
    decades = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    marks = [mark * 10.0**decade for decade in decades for mark in (1, 2, 5)]
    low = max(mark for mark in marks if mark <= least * (1 + 1e-9))
    high = min(mark for mark in marks if mark >= most * (1 - 1e-9) and mark > low)
    ticks = tuple(mark for mark in marks if low <= mark <= high)
    if len(ticks) > 7:
        ticks = tuple(tick for tick in ticks if f"{tick:e}".startswith("1.0")) or ticks
    return Axis(low, high, ticks, text, title, log=True)


def _round_up(step: float) -> float:
    """The first of 1, 2, 2.5, 5, 10, ... times a power of ten that is at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(mark * power for mark in (1, 2, 2.5, 5, 10) if mark * power >= step * (1 - 1e-9))
