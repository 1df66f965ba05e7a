"""Pauses for garbage collection: each counted under its generation, and never in the way of a scrape."""

import gc
import json
import sys
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.utils import floatToGoString

from qpack_runtime.serve import histogram
from qpack_runtime.serve.gc_pauses import EDGES, GcPauses


@pytest.fixture
def pauses() -> Iterator[GcPauses]:
    """Installed, while only the test collects."""
    pauses = GcPauses()
    enabled = gc.isenabled()
    gc.disable()
    pauses.install()
    yield pauses
    if pauses._on_collection in gc.callbacks:
        pauses.uninstall()
    if enabled:
        gc.enable()


def value(pauses: GcPauses, name: str, generation: int, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(pauses)
    return registry.get_sample_value(f"qpack_gc_pause_seconds_{name}", {"generation": str(generation), **labels})


def test_each_collection_is_counted_under_its_generation_as_python_counts_it(pauses: GcPauses):
    before = [one["collections"] for one in gc.get_stats()]
    for generation in (0, 1, 1, 2, 2, 2):
        gc.collect(generation)
    ran = [now["collections"] - then for now, then in zip(gc.get_stats(), before, strict=True)]
    assert [value(pauses, "count", generation) for generation in range(3)] == ran == [1, 2, 3]


def test_a_pause_lasts_from_start_to_stop(pauses: GcPauses, monkeypatch: pytest.MonkeyPatch):
    clock = iter([100.0, 100.25, 200.0, 200.05])
    monkeypatch.setattr("qpack_runtime.serve.gc_pauses.time.perf_counter", lambda: next(clock))
    gc.collect(2)
    gc.collect(2)
    assert value(pauses, "sum", 2) == pytest.approx(0.3)
    assert value(pauses, "bucket", 2, le="0.2") == 1
    assert value(pauses, "bucket", 2, le="0.5") == value(pauses, "bucket", 2, le="+Inf") == 2


def test_all_generations_are_there_before_the_first_collection():
    assert [value(GcPauses(), "count", generation) for generation in range(3)] == [0, 0, 0]
    assert 0.05 in EDGES  # the limit of the alert


def test_a_collection_where_the_stack_ends_is_not_counted_and_says_nothing(monkeypatch: pytest.MonkeyPatch):
    """As in a body of too many brackets: each is a list, and one of them may begin a collection."""
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    pauses, thresholds = GcPauses(), gc.get_threshold()
    pauses.install()
    try:
        for lists in range(500, sys.getrecursionlimit()):
            gc.collect(0)
            gc.set_threshold(lists)
            with pytest.raises(RecursionError):
                json.loads("[" * 100_000)
    finally:
        gc.set_threshold(*thresholds)
        pauses.uninstall()
    assert told == []
    assert value(pauses, "count", 0)


def test_a_collection_amid_a_scrape_waits_for_nothing(pauses: GcPauses, monkeypatch: pytest.MonkeyPatch):
    """It begins in the thread that scrapes, which a lock would hold for ever."""
    monkeypatch.setattr(histogram, "floatToGoString", lambda edge: gc.collect(0) * 0 or floatToGoString(edge))
    (family,) = pauses.collect()
    assert {one.value for one in family.samples if one.name.endswith("_count")} == {0}
    monkeypatch.undo()
    assert value(pauses, "count", 0) == 3 * (len(EDGES) + 1)  # what came amid a scrape is in the next one


def test_nothing_is_timed_after_uninstall(pauses: GcPauses):
    pauses.uninstall()
    gc.collect(0)
    assert value(pauses, "count", 0) == 0
    assert pauses._on_collection not in gc.callbacks
