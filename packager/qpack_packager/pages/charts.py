"""Charts as inline SVG: from numbers to markup that fits any width, can be read aloud and asks nobody for anything.

`colour` is 1 to 8, the page's --c1 to --c8. `title` is what a mark says when it is pointed at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from markupsafe import Markup

from qpack_packager.pages.axes import Axis, within
from qpack_packager.pages.labels import Box, Label, beside, ticks
from qpack_packager.pages.svg import FONT, GUTTER, LINE, MARGIN, NARROW, ROOMY, chart, percent, tag, titled
from qpack_packager.pages.text import shortened, width

BAR, ROW = 8, 36  # pixels: of a bar, and from one bar to the next
STEP = 20  # from one instruction to the next in `steps`


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    text: str  # the value in words
    colour: int = 1
    title: str = ""
    spread: tuple[float, float] | None = None  # lowest and highest value that may be true


@dataclass(frozen=True)
class Part:
    value: float
    colour: int
    title: str


@dataclass(frozen=True)
class Stack:
    name: str
    text: str
    parts: Sequence[Part]

    @property
    def whole(self) -> float:
        return sum(part.value for part in self.parts)


@dataclass(frozen=True)
class Lane:
    """Bytes `offset` up to `offset + size`, held from step `first` to step `last`, both included."""

    first: int
    last: int
    offset: int
    size: int
    colour: int
    title: str
    label: str = ""


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    title: str
    label: str = ""  # beside the point, if there is room
    hollow: bool = False


@dataclass(frozen=True)
class Series:
    colour: int
    points: Sequence[Point]
    line: Sequence[tuple[float, float]] = ()  # drawn behind the points
    dashed: bool = False


def bars(label: str, rows: Sequence[Bar]) -> Markup:
    """A bar a line, under its name and its value; the longest is as wide as the chart."""
    most = max((row.spread[1] if row.spread else row.value for row in rows), default=0) or 1
    marks: list[Markup] = []
    for place, row in enumerate(rows):
        top = place * ROW + LINE + 2
        marks += _heading(row.name, row.text, place * ROW)
        marks.append(tag("rect", y=top, width="100%", height=BAR, rx=2, class_="track"))
        size = percent(row.value / most)
        marks.append(tag("rect", *titled(row.title), y=top, width=size, height=BAR, rx=2, class_=f"mark c{row.colour}"))
        if row.spread:
            low, high = (end / most for end in row.spread)
            marks.append(tag("rect", x=percent(low), y=top, width=percent(high - low), height=BAR, class_="spread"))
    return chart(label, len(rows) * ROW, *marks)


def stacked_bars(label: str, rows: Sequence[Stack], *, bar: int = 2 * BAR) -> Markup:
    """A bar of parts a line, all to one scale; the longest is as wide as the chart. `bar` is its height."""
    most = max((row.whole for row in rows), default=0) or 1
    marks: list[Markup] = []
    for place, row in enumerate(rows):
        top, begin = place * (ROW + bar - BAR), 0.0
        marks += _heading(row.name, row.text, top)
        for part in row.parts:
            shape = {"x": percent(begin / most), "y": top + LINE + 2, "width": percent(part.value / most)}
            marks.append(tag("rect", *titled(part.title), **shape, height=bar, class_=f"mark c{part.colour}"))
            begin += part.value
    return chart(label, len(rows) * (ROW + bar - BAR), *marks)


def columns(label: str, stacks: Sequence[Stack], y: Axis, title: str = "", *, height: int = 180) -> Markup:
    """Columns of parts, one a stack, from left to right, written below where a stack has a name; `title` says what the
    columns are."""
    count = len(stacks) or 1
    middles = {(place + 0.5) / count: stack.name for place, stack in enumerate(stacks) if stack.name}
    x = Axis(0.0, 1.0, tuple(middles), lambda tick: middles[tick], title)
    marks: list[Markup] = []
    for place, stack in enumerate(stacks):
        begin = 0.0
        for part in stack.parts:
            share = y.at(begin + part.value) - y.at(begin)
            begin += part.value
            shape = {"x": percent((place + 0.1) / count), "width": percent(0.8 / count), "height": percent(share)}
            mark = f"mark c{part.colour}"
            marks.append(tag("rect", *titled(part.title), **shape, y=percent(1 - y.at(begin)), class_=mark))
    return _plot(label, x, y, height, marks)


def histogram(label: str, x: Axis, y: Axis, edges: Sequence[float], counts: Sequence[float], colour: int = 1) -> Markup:
    """How many values lie between one edge and the next; `counts` has one fewer than `edges`."""
    marks: list[Markup] = []
    for (low, high), count in zip(pairwise(edges), counts, strict=True):
        left, right, share = x.at(low), x.at(high), y.at(count)
        title = f"{count:,} from {x.text(low)} to {x.text(high)}"
        shape = {"x": percent(left), "width": percent(right - left), "y": percent(1 - share), "height": percent(share)}
        marks.append(tag("rect", *titled(title), **shape, class_=f"mark c{colour}"))
    return _plot(label, x, y, 160, marks)


def lanes(label: str, rectangles: Sequence[Lane], steps: int, y: Axis, title: str = "", *, height: int = 240) -> Markup:
    """What holds which bytes at which of `steps` steps: time goes to the right, bytes go up. `y` is in bytes."""
    marks = [
        tag(
            "rect",
            *titled(lane.title),
            x=lane.first,
            y=int(y.high) - lane.offset - lane.size,
            width=lane.last + 1 - lane.first,
            height=lane.size,
            class_=f"mark c{lane.colour}",
        )
        for lane in rectangles
    ]
    box = f"0 0 {max(steps, 1)} {int(y.high)}"
    drawn = tag("svg", *marks, viewBox=box, preserveAspectRatio="none", width="100%", height="100%", class_="map")
    return _plot(label, within(0, max(steps, 1), "{:,.0f}".format, title, count=6, whole=True), y, height, [drawn])


def steps(label: str, rectangles: Sequence[Lane], names: Sequence[str], x: Axis) -> Markup:
    """The same with time going down, a line a step of `names`, so that steps and buffers can be named. `x` is in
    bytes."""
    gutter, height = ceil(max(map(width, names), default=0) * FONT) + 12, len(names) * STEP
    marks: list[Markup] = []
    for lane in rectangles:
        left, right = x.at(lane.offset), x.at(lane.offset + lane.size)
        top, tall = lane.first * STEP, (lane.last + 1 - lane.first) * STEP
        shape = {"x": percent(left), "width": percent(right - left), "y": top, "height": tall}
        marks.append(tag("rect", *titled(lane.title), **shape, class_=f"mark soft c{lane.colour}"))
        needs = width(lane.label) * FONT + 4
        narrow, roomy = ((size - gutter - MARGIN) * (right - left) >= needs for size in (NARROW, ROOMY))
        if lane.label and roomy:
            inside = Label(lane.label, (left + right) / 2, top + tall / 2 + 4)
            marks.append(inside.drawn("label" if narrow else "label roomy"))
    rows = [tag("line", x1=0, x2="100%", y1=at * STEP, y2=at * STEP, class_="grid") for at in range(len(names) + 1)]
    texts = [tag("text", name, x=-8, y=at * STEP + 14, class_="end") for at, name in enumerate(names)]
    texts += ticks(x, height + LINE - 2, gutter)
    return chart(label, height, *rows, *marks, *texts, padding=(1, MARGIN, LINE + 4, gutter))


def scatter(label: str, series: Sequence[Series], x: Axis, y: Axis, *, height: int = 260) -> Markup:
    """Points, and lines behind them. A point's label is left out where it would meet another or a point."""
    marks: list[Markup] = []
    for one in series:
        if one.line:
            path = " ".join(f"{100 * x.at(at):.3f},{100 * (1 - y.at(value)):.3f}" for at, value in one.line)
            line = tag("polyline", points=path, class_=f"line c{one.colour}{' dashed' if one.dashed else ''}")
            box = {"viewBox": "0 0 100 100", "preserveAspectRatio": "none", "width": "100%", "height": "100%"}
            marks.append(tag("svg", line, **box))
    for one in series:
        for point in one.points:
            place = {"cx": percent(x.at(point.x)), "cy": percent(1 - y.at(point.y)), "r": 4}
            hollow = " hollow" if point.hollow else ""
            marks.append(tag("circle", *titled(point.title), **place, class_=f"mark c{one.colour}{hollow}"))
    points = [point for one in series for point in one.points]
    return _plot(label, x, y, height, [*marks, *_labels(points, x, y, height)])


def _labels(points: Sequence[Point], x: Axis, y: Axis, height: int) -> list[Markup]:
    """First what fits the narrowest screen, then what a wider one has room for besides."""
    places = [(point, x.at(point.x), height * (1 - y.at(point.y))) for point in points]
    taken = [Box(at, -5, 5, top - 5, top + 5) for _, at, top in places]
    drawn: list[Markup] = []
    for size, shown in ((NARROW, "label"), (ROOMY, "label roomy")):
        left = []
        for point, at, top in places:
            label = beside(point.label, at, top, taken, size - GUTTER - MARGIN, height) if point.label else None
            if label:
                drawn.append(label.drawn(shown))
                taken.append(label.box)
            else:
                left.append((point, at, top))
        places = left
    return drawn


def _plot(label: str, x: Axis, y: Axis, height: int, marks: Sequence[Markup]) -> Markup:
    """`marks` over a grid, `height` pixels high, with both axes written."""
    padding = (LINE + 8 if y.title else LINE // 2, MARGIN, LINE * (2 if x.title else 1) + 4, GUTTER)
    places = [(y.text(tick), percent(1 - y.at(tick))) for tick in y.ticks]
    lines = [tag("line", x1=0, x2="100%", y1=at, y2=at, class_="grid") for _, at in places]
    texts = [tag("text", text, x=-8, y=at, dy=4, class_="end") for text, at in places]
    if y.title:
        texts.append(tag("text", y.title, x=-GUTTER, y=-14))
    if x.title:
        texts.append(tag("text", x.title, x="100%", y=height + 2 * LINE - 2, class_="end"))
    return chart(label, height, *lines, *marks, *texts, *ticks(x, height + LINE - 2, GUTTER), padding=padding)


def _heading(name: str, text: str, top: float) -> list[Markup]:
    room = NARROW / FONT - width(text) - 1
    return [
        tag("text", *titled(name), shortened(name, room), x=0, y=top + FONT),
        tag("text", text, x="100%", y=top + FONT, class_="end value"),
    ]
