"""Where text may stand in a chart so that it meets no other text, whatever the chart's width.

A label hangs on a point, whose place is a share of the width, and keeps its size in pixels. So two labels that are
apart on the narrowest screen, in the order of their points, only move further apart on a wider one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from markupsafe import Markup

from qpack_packager.pages.axes import Axis
from qpack_packager.pages.svg import FONT, MARGIN, NARROW, percent, tag
from qpack_packager.pages.text import visible, width


class Box(NamedTuple):
    """What text or a mark covers: pixels left and right of a point that lies at `at`, 0 to 1, along the width."""

    at: float
    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: "Box", room: float) -> bool:
        """Whether the two meet where the width is `room` pixels or at any greater width."""
        if self.bottom <= other.top or other.bottom <= self.top:
            return False
        first, second = sorted((self, other))
        return first.at * room + first.right > second.at * room + second.left

    def within(self, room: float) -> bool:
        return self.at * room + self.left >= 0 and self.at * room + self.right <= room + MARGIN


@dataclass(frozen=True)
class Label:
    text: str
    at: float
    baseline: float  # pixels from the top
    anchor: Literal["start", "middle", "end"] = "middle"
    shift: float = 0.0  # pixels, from the point to where the text is anchored

    @property
    def box(self) -> Box:
        size = width(visible(self.text)) * FONT + 4
        left = self.shift - {"start": 2, "middle": size / 2, "end": size - 2}[self.anchor]
        return Box(self.at, left, left + size, self.baseline - FONT, self.baseline + 4)

    def drawn(self, class_: str = "") -> Markup:
        place = {"x": percent(self.at), "dx": self.shift or None, "y": self.baseline}
        return tag("text", self.text, **place, class_=f"{self.anchor} {class_}".rstrip())


def ticks(x: Axis, baseline: float, gutter: int) -> list[Markup]:
    """The text of as many of the axis's ticks as have room, evenly chosen. `gutter`: pixels left of the plot."""
    room = NARROW - gutter - MARGIN
    for stride in range(1, len(x.ticks) + 1):
        labels = [_tick(x.text(tick), x.at(tick), baseline, room) for tick in x.ticks[::stride]]
        if not any(one.box.meets(other.box, room) for one, other in pairwise(labels)):
            return [label.drawn() for label in labels]
    return []


def _tick(text: str, at: float, baseline: float, room: float) -> Label:
    """Below its tick, or ending where the chart ends."""
    below = Label(text, at, baseline)
    return below if below.box.within(room) or at < 0.5 else Label(text, at, baseline, "end", (1 - at) * MARGIN)


def beside(text: str, at: float, top: float, taken: Iterable[Box], room: float, height: float) -> Label | None:
    """`text` right, left, above or below of a point, where nothing is taken yet and the plot doesn't end."""
    for label in (
        Label(text, at, top + 4, "start", 8),
        Label(text, at, top + 4, "end", -8),
        Label(text, at, top - 9),
        Label(text, at, top + 18),
    ):
        box = label.box
        if box.within(room) and box.top >= 0 and box.bottom <= height and not any(box.meets(t, room) for t in taken):
            return label
    return None
