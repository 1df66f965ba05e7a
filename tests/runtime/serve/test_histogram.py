"""The histogram without locks says what prometheus_client's own says of the same observations."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.registry import Collector

from qpack_runtime.serve.histogram import OneWriterHistogram
from qpack_runtime.serve.metrics import Metrics

EDGES = (0.001, 0.01, 0.1, 1, 10)
AMOUNTS = st.floats(-1, 100, allow_nan=False) | st.sampled_from([*EDGES, float("inf")])


def exposition(collectors: Iterable[Collector]) -> str:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry).decode("utf-8")


@pytest.fixture(scope="module", autouse=True)
def _no_created_series() -> None:
    Metrics([])  # the server's setting


@given(st.lists(AMOUNTS))
def test_without_a_label_it_is_the_librarys_histogram(amounts: list[float]):
    ours = OneWriterHistogram("seconds", "Times.", EDGES)
    theirs = Histogram("seconds", "Times.", buckets=EDGES, registry=None)
    series = ours.series()
    for amount in amounts:
        series.observe(amount)
        theirs.observe(amount)
    assert exposition([ours]) == exposition([theirs])


@given(st.lists(st.tuples(st.sampled_from(["decode", "prefill", 'a"b\\c\n']), AMOUNTS)))
def test_with_a_label_it_is_the_librarys_histogram(observed: list[tuple[str, float]]):
    ours = OneWriterHistogram("seconds", "Times.", EDGES, "bucket")
    theirs = Histogram("seconds", "Times.", ("bucket",), buckets=EDGES, registry=None)
    for value, amount in observed:
        ours.series(value).observe(amount)
        theirs.labels(value).observe(amount)
    assert exposition([ours]) == exposition([theirs])


def test_a_series_is_there_before_its_first_observation():
    histogram = OneWriterHistogram("seconds", "Times.", EDGES, "bucket")
    assert "bucket=" not in exposition([histogram])
    histogram.series("decode")
    assert 'seconds_count{bucket="decode"} 0.0' in exposition([histogram])
