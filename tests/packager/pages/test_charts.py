"""The laws of the charts: marks as large as values, rectangles apart where a plan is sound, text that never meets."""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from qpack_packager.pages.axes import linear, logarithmic, within
from qpack_packager.pages.charts import (
    Bar,
    Lane,
    Part,
    Point,
    Series,
    Stack,
    bars,
    columns,
    histogram,
    lanes,
    scatter,
    stacked_bars,
    steps,
)
from qpack_packager.pages.text import escaped, shortened, visible, width
from qpack_packager.planner import plan

HOSTILE = "</title><script>alert(1)</script> \"'& \u202egnp.exe\n 模型 \x00"
POSITIVE = st.floats(1e-6, 1e12)
PADDING_LEFT, MARGIN = 58, 18  # pixels of a plot's padding, as the style of its element says


def drawing(markup: Markup) -> ElementTree.Element:
    """The one element of a chart, which must be sound XML with a role and a name."""
    root = ElementTree.fromstring(markup)
    assert (root.tag, root.get("role"), root.get("width")) == ("svg", "img", "100%")
    assert root.get("aria-label")
    return root


def marks(root: ElementTree.Element, kind: str = "rect") -> list[ElementTree.Element]:
    return [one for one in root.iter(kind) if "mark" in (one.get("class") or "").split()]


def share(one: ElementTree.Element, name: str) -> float:
    """A percentage as 0 to 1."""
    value = one.get(name, "")
    assert value.endswith("%")
    return float(value[:-1]) / 100


def text(value: float) -> str:
    return f"{value:,.6g}"


@given(st.lists(POSITIVE, min_size=1, max_size=30))
def test_bars_are_as_long_as_their_values(values: list[float]):
    root = drawing(bars("x", [Bar(str(value), value, text(value)) for value in values]))
    lengths = [share(mark, "width") for mark in marks(root)]
    assert lengths == pytest.approx([value / max(values) for value in values], abs=1e-5)


@given(st.lists(st.lists(POSITIVE, min_size=1, max_size=6), min_size=1, max_size=6))
def test_parts_of_a_stacked_bar_follow_one_another_to_one_scale(values: list[list[float]]):
    stacks = [Stack("s", "t", [Part(value, 1, "p") for value in row]) for row in values]
    left = marks(drawing(stacked_bars("x", stacks)))
    most = max(map(sum, values))
    for row in values:
        begin = 0.0
        for value in row:
            mark = left.pop(0)
            assert share(mark, "x") == pytest.approx(begin / most, abs=1e-5)
            assert share(mark, "width") == pytest.approx(value / most, abs=1e-5)
            begin += value
    assert left == []


@given(st.lists(st.lists(POSITIVE, min_size=1, max_size=4), min_size=1, max_size=40))
def test_columns_stand_on_each_other_and_beside_each_other(values: list[list[float]]):
    y = linear([sum(row) for row in values], text)
    root = drawing(columns("x", [Stack(str(n), "", [Part(v, 1, "p") for v in row]) for n, row in enumerate(values)], y))
    left = marks(root)
    for number, row in enumerate(values):
        floor = 1.0
        for value in row:
            mark = left.pop(0)
            assert number / len(values) <= share(mark, "x") + 1e-5
            assert share(mark, "x") + share(mark, "width") <= (number + 1) / len(values) + 1e-5
            assert share(mark, "height") == pytest.approx(value / y.high, abs=1e-5)
            assert share(mark, "y") + share(mark, "height") == pytest.approx(floor, abs=3e-5)
            floor = share(mark, "y")


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30), st.booleans())
def test_a_histogram_has_a_column_between_any_two_edges(counts: list[int], log: bool):
    edges = [1e-6 * 2.0**n for n in range(len(counts) + 1)]
    x = logarithmic(edges, text) if log else linear(edges, text)
    root = drawing(histogram("x", x, linear(counts, text), edges, counts))
    columns_drawn = marks(root)
    assert len(columns_drawn) == len(counts)
    for low, high, count, mark in zip(edges[:-1], edges[1:], counts, columns_drawn, strict=True):
        assert share(mark, "x") == pytest.approx(x.at(low), abs=1e-5)
        assert share(mark, "x") + share(mark, "width") == pytest.approx(x.at(high), abs=2e-5)
        assert share(mark, "height") * linear(counts, text).high == pytest.approx(count, rel=1e-3, abs=12)


SPANS = st.tuples(st.integers(0, 30), st.integers(0, 9)).map(lambda pair: (pair[0], pair[0] + pair[1]))
VALUES = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.tuples(st.integers(1, 5000), SPANS), max_size=30)


def planned(values: dict[str, tuple[int, tuple[int, int]]]) -> list[Lane]:
    sizes, spans = {n: size for n, (size, _) in values.items()}, {n: span for n, (_, span) in values.items()}
    offsets = plan(sizes, spans)
    return [Lane(*spans[name], offsets[name], sizes[name], 1, name, name) for name in sorted(values)]


@given(VALUES)
def test_rectangles_of_a_sound_plan_never_overlap_and_have_the_area_of_their_bytes(values):
    rectangles = planned(values)
    peak = max((lane.offset + lane.size for lane in rectangles), default=1)
    drawn = marks(drawing(lanes("x", rectangles, 40, within(0, peak, text))))
    boxes = [tuple(int(mark.get(side, "")) for side in ("x", "y", "width", "height")) for mark in drawn]
    for lane, (x, y, wide, high) in zip(rectangles, boxes, strict=True):
        assert wide * high == (lane.last - lane.first + 1) * lane.size
        assert (x, peak - y - high) == (lane.first, lane.offset)
    for (ax, ay, aw, ah), (bx, by, bw, bh) in combinations(boxes, 2):
        assert ax + aw <= bx or bx + bw <= ax or ay + ah <= by or by + bh <= ay


def test_rectangles_of_a_plan_that_is_not_sound_do_overlap():
    """What the drawing is for: an error of the plan is seen."""
    both = [Lane(0, 2, 0, 100, 1, "a"), Lane(2, 3, 50, 100, 1, "b")]
    first, second = (
        tuple(int(mark.get(side, "")) for side in ("x", "y", "width", "height"))
        for mark in marks(drawing(lanes("x", both, 4, within(0, 150, text))))
    )
    assert first[0] + first[2] > second[0]
    assert second[1] + second[3] > first[1]


@given(VALUES)
def test_steps_show_the_same_plan_turned(values):
    rectangles = planned(values)
    peak = max((lane.offset + lane.size for lane in rectangles), default=1)
    drawn = marks(drawing(steps("x", rectangles, ["op"] * 40, within(0, peak, text))))
    for lane, mark in zip(rectangles, drawn, strict=True):
        assert mark.get("y") == str(20 * lane.first)
        assert mark.get("height") == str(20 * (lane.last - lane.first + 1))
        assert share(mark, "x") == pytest.approx(lane.offset / peak, abs=1e-5)
        assert share(mark, "width") == pytest.approx(lane.size / peak, abs=1e-5)


@given(st.lists(POSITIVE, min_size=1, max_size=20))
def test_a_logarithmic_axis_holds_all_values_and_keeps_ratios(values: list[float]):
    axis = logarithmic(values, text)
    assert axis.low <= min(values) * (1 + 1e-9)
    assert max(values) <= axis.high * (1 + 1e-9)
    for low, high in combinations(sorted(values), 2):
        distance = math.log(high / low) / math.log(axis.high / axis.low)
        assert axis.at(high) - axis.at(low) == pytest.approx(distance, abs=1e-9)
    assert (axis.at(axis.low), axis.at(axis.high)) == (0, 1)
    assert axis.at(axis.low / 10) == axis.at(0) == 0
    assert axis.at(axis.high * 10) == 1
    assert all(f"{tick:e}"[0] in "125" and axis.low <= tick <= axis.high for tick in axis.ticks)
    assert axis.ticks == tuple(sorted(set(axis.ticks)))


@given(st.lists(POSITIVE, min_size=1, max_size=20))
def test_a_linear_axis_begins_at_zero_and_ends_just_above_the_values(values: list[float]):
    axis = linear(values, text)
    assert axis.ticks[0] == axis.low == 0
    assert max(values) <= axis.high * (1 + 1e-9)
    assert axis.high <= 2 * max(values)
    assert 2 <= len(axis.ticks) <= 6
    assert axis.ticks[-1] == pytest.approx(axis.high)


@given(st.integers(1, 10**8), st.integers(1, 8))
def test_ticks_between_two_ends_are_round_and_whole_where_they_must_be(high: int, count: int):
    axis = within(-0.5, high + 0.5, text, whole=True, count=count)
    assert all(tick == int(tick) and -0.5 <= tick <= high + 0.5 for tick in axis.ticks)
    assert 1 <= len(axis.ticks) <= count + 2


def test_empty_data_are_empty_charts():
    flat, rates = linear([], text), logarithmic([], text)
    for markup in (
        bars("none", []),
        stacked_bars("none", []),
        columns("none", [], flat),
        histogram("none", rates, flat, [], []),
        lanes("none", [], 0, within(0, 1, text)),
        steps("none", [], [], within(0, 1, text)),
        scatter("none", [], rates, flat),
        scatter("none", [Series(1, [])], rates, flat),
    ):
        root = drawing(markup)
        assert marks(root) == marks(root, "circle") == []
    for chart in (bars("x", [Bar("a", 0, "0")]), stacked_bars("x", [Stack("a", "0", [Part(0, 1, "")])])):
        assert [share(mark, "width") for mark in marks(drawing(chart))] == [0]


def test_points_lie_where_their_values_are():
    points = [Point(10, 1, "a"), Point(1000, 4, "b", hollow=True), Point(100, 2, "c")]
    line = [(10.0, 1.0), (1000.0, 4.0)]
    x, y = logarithmic([10, 1000], text), linear([4], text)
    root = drawing(scatter("x", [Series(3, points, line)], x, y))
    assert [(share(mark, "cx"), share(mark, "cy")) for mark in marks(root, "circle")] == [(0, 0.75), (1, 0), (0.5, 0.5)]
    assert [mark.findtext("title") for mark in marks(root, "circle")] == ["a", "b", "c"]
    (drawn,) = root.iter("polyline")
    assert drawn.get("points") == "0.000,75.000 100.000,0.000"


class Written(NamedTuple):
    """Text of a chart, with the pixels it takes at some width."""

    text: str
    left: float
    right: float
    baseline: float


def written(root: ElementTree.Element, chart_width: float) -> list[Written]:
    """What hangs on a place along the width, labels and ticks, in a chart of this width."""
    room = chart_width - PADDING_LEFT - MARGIN
    found: list[Written] = []
    for one in root.iter("text"):
        classes = (one.get("class") or "").split()
        if (one.get("x") or "").endswith("%") and ("roomy" not in classes or chart_width >= 480):
            size = 12 * width(one.text or "")
            anchor = share(one, "x") * room + float(one.get("dx", 0))
            left = anchor - {"start": 0, "middle": size / 2, "end": size}[classes[0]]
            found.append(Written(one.text or "", left, left + size, float(one.get("y", ""))))
    return found


def assert_apart(labels: list[Written], chart_width: float) -> None:
    assert all(label.right <= chart_width - PADDING_LEFT for label in labels)
    for one, other in combinations(labels, 2):
        apart = one.right <= other.left or other.right <= one.left
        assert apart or abs(one.baseline - other.baseline) >= 12, (chart_width, one, other)


NAMES = st.text("abcmWI 型", min_size=1, max_size=16).filter(str.strip)
POINTS = st.lists(st.tuples(st.floats(1, 1e4), st.floats(0, 10), NAMES), max_size=25)


@given(POINTS)
def test_labels_never_meet_at_any_width(points: Sequence[tuple[float, float, str]]):
    series = [Series(1, [Point(x, y, "", name) for x, y, name in points])]
    root = drawing(scatter("x", series, logarithmic([1, 1e4], text), linear([10], text)))
    for chart_width in (328, 400, 479, 480, 800, 1400):
        assert_apart(written(root, chart_width), chart_width)


@given(st.lists(st.text("0123456789,. kMGB模", min_size=1, max_size=12).filter(str.strip), min_size=1, max_size=80))
def test_what_is_written_along_an_axis_never_meets_and_something_is(names: list[str]):
    root = drawing(columns("x", [Stack(name, "", []) for name in names], linear([1], text)))
    for chart_width in (328, 480, 1400):
        labels = written(root, chart_width)
        assert_apart(labels, chart_width)
        assert labels


def test_a_label_with_room_around_it_is_written():
    root = drawing(scatter("x", [Series(1, [Point(5, 5, "", "alone")])], linear([10], text), linear([10], text)))
    assert "alone" in [label.text for label in written(root, 328)]


@given(st.text(max_size=60), st.floats(3, 30))
def test_shortened_text_fits_and_keeps_its_ends(name: str, most: float):
    short = shortened(name, most)
    assert width(short) <= most
    if short != visible(name):
        head, tail = short.split("…", 1) if "…" not in visible(name) else ("", "")
        assert visible(name).startswith(head)
        assert visible(name).endswith(tail)


@given(st.text(max_size=60))
def test_shown_text_prints_and_says_what_it_was(name: str):
    shown = visible(name)
    assert shown.isprintable()
    assert shown == name or not name.isprintable()
    read = ElementTree.fromstring(f'<a b="{escaped(name)}">{escaped(name)}</a>')
    assert (read.get("b"), read.text or "") == (shown, shown)


def test_a_hostile_name_is_text_in_every_chart():
    flat = linear([1], text)
    for markup in (
        bars(HOSTILE, [Bar(HOSTILE, 1, HOSTILE, title=HOSTILE)]),
        stacked_bars(HOSTILE, [Stack(HOSTILE, HOSTILE, [Part(1, 1, HOSTILE)])]),
        columns(HOSTILE, [Stack(HOSTILE, "", [Part(1, 1, HOSTILE)])], flat, HOSTILE),
        lanes(HOSTILE, [Lane(0, 0, 0, 1, 1, HOSTILE, HOSTILE)], 1, within(0, 1, text), HOSTILE),
        steps(HOSTILE, [Lane(0, 0, 0, 1, 1, HOSTILE, "a")], [HOSTILE], within(0, 1, text)),
        scatter(HOSTILE, [Series(1, [Point(1, 1, HOSTILE, HOSTILE)])], flat, flat),
    ):
        root = drawing(markup)
        assert {one.tag for one in root.iter()} <= {"svg", "rect", "line", "text", "title", "circle", "polyline"}
        assert "\u202e" not in markup
        assert root.get("aria-label") == visible(HOSTILE)
        assert visible(HOSTILE) in {one.text for one in root.iter("title")}
