"""A histogram without locks, for what is observed at every token: a fraction of what a locked one costs."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Series:
    """The observations under one value of the label. One thread at a time may observe; any may collect meanwhile."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]):
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)  # the last one: above all edges
        self.total = 0.0

    def observe(self, amount: float) -> None:
        self.counts[bisect_left(self.edges, amount)] += 1  # an edge belongs to its own bucket: le
        self.total += amount


class OneWriterHistogram(Collector):
    """A histogram with one label or none.

    `edges`: upper edges, ascending. A series is there from `series` on, so that a rate() sees its first increase."""

    def __init__(self, name: str, documentation: str, edges: Sequence[float], label: str = ""):
        self.name, self.documentation, self.edges, self.label = name, documentation, edges, label
        self._series: dict[str, Series] = {}

    def series(self, value: str = "") -> Series:
        """The series whose label has this value, made if it isn't there; without a label, the only one."""
        return self._series.setdefault(value, Series(self.edges))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self.name, self.documentation, labels=[self.label] if self.label else [])
        for value, series in list(self._series.items()):
            total, buckets = 0, []
            for edge, count in zip((*self.edges, float("inf")), list(series.counts), strict=True):
                total += count
                buckets.append((floatToGoString(edge), total))
            family.add_metric([value] if self.label else [], buckets, series.total)
        yield family
