"""What the server counts, as Prometheus reads it back: names, labels, series there before their first increase."""

import re
import shutil
import subprocess
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.parser import text_string_to_metric_families

from qpack_runtime.serve.metrics import CONTENT_TYPE, STATUSES, Metrics

BUCKETS = ("decode-b1-c512", "decode-b8-c512", "prefill-t64-c512")
ENDPOINTS = ("/v1/chat/completions", "/v1/completions")


def booted(device: str = "cpu") -> Metrics:
    metrics = Metrics(ENDPOINTS)
    metrics.booted(
        version="0.1.0",
        bundle_id="5f0c",
        mode="fast",
        model="tiny-qwen3",
        device=device,
        buckets=BUCKETS,
        slots=8,
        queue_limit=64,
        arena_bytes={"weights": 4096, "state": 2048, "io": 512, "work": 1024},
        phase_seconds={"verify": 0.25, "bind": 0.5},
        capture_seconds=0.5,
    )
    return metrics


class Scrape:
    """What Prometheus' own format parser makes of a rendering."""

    def __init__(self, metrics: Metrics):
        families = text_string_to_metric_families(metrics.render().decode("utf-8"))
        self.samples = [(one.name, one.labels, one.value) for family in families for one in family.samples]

    def value(self, name: str, **labels: str) -> float:
        (found,) = (amount for one, their, amount in self.samples if (one, their) == (name, labels))
        return found

    def total(self, name: str) -> float:
        return sum(amount for one, _, amount in self.samples if one == name)


@pytest.mark.parametrize("device", ["none", "cpu", "cuda"])
def test_promtool_finds_nothing_to_improve(device: str):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool comes with Prometheus")
    text = (Metrics(ENDPOINTS) if device == "none" else booted(device)).render()
    ran = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_the_text_is_of_the_format_that_its_content_type_names():
    assert CONTENT_TYPE == CONTENT_TYPE_PLAIN_0_0_4
    assert booted().render().endswith(b"\n")
    assert not [name for name, _, _ in Scrape(booted()).samples if name.endswith("_created")]  # of OpenMetrics


def test_every_series_whose_labels_are_known_is_there_at_zero():
    found = {(name, *labels.values()) for name, labels, amount in Scrape(booted()).samples if amount == 0}
    expected = {
        *((("qpack_requests_total", endpoint, str(status))) for endpoint in ENDPOINTS for status in STATUSES),
        *(("qpack_requests_refused_total", why) for why in ("queue_full", "queue_timeout", "draining", "not_ready")),
        *(("qpack_requests_cancelled_total", why) for why in ("disconnect", "timeout", "drain")),
        *(("qpack_request_success_total", reason) for reason in ("stop", "length", "tool_calls")),
        *((("qpack_step_rows_total", kind)) for kind in ("live", "padding")),
        *((f"qpack_{name}_total", bucket) for name in ("steps", "graph_replays") for bucket in BUCKETS),
        *(("qpack_step_seconds_count", bucket) for bucket in BUCKETS),
        *(("qpack_gc_pause_seconds_count", generation) for generation in "012"),
        *((f"qpack_{name}_tokens_total",) for name in ("prompt", "cached_prompt", "generation")),
        ("qpack_graph_replay_failures_total",),
        ("qpack_time_to_first_token_seconds_count",),
        ("qpack_time_per_output_token_seconds_count",),
        ("qpack_queue_time_seconds_count",),
        ("qpack_e2e_request_latency_seconds_count",),
        ("qpack_step_host_seconds_count",),
    }
    assert expected <= found


def test_fallbacks_are_counted_on_gpus_only():
    assert Scrape(booted("cuda")).value("qpack_graph_fallback_total") == 0
    assert "graph_fallback" not in booted("cpu").render().decode("utf-8")


def test_the_process_tells_of_itself():
    assert Scrape(booted()).value("process_resident_memory_bytes") > 1 << 20
    assert {"process_open_fds", "process_start_time_seconds"} <= {name for name, _, _ in Scrape(booted()).samples}


def test_a_boot_is_told():
    scrape = Scrape(booted())
    assert scrape.value("qpack_boot_seconds") == 0.75
    assert scrape.value("qpack_boot_phase_seconds", phase="verify") == 0.25
    assert scrape.value("qpack_graph_capture_seconds") == 0.5
    assert scrape.value("qpack_arena_bytes", arena="state") == 2048
    assert (scrape.value("qpack_slots"), scrape.value("qpack_queue_limit")) == (8, 64)
    info = {"version": "0.1.0", "bundle_id": "5f0c", "model": "tiny-qwen3", "device": "cpu", "mode": "fast"}
    assert scrape.value("qpack_build_info", **info) == 1


@given(st.lists(st.tuples(st.sampled_from(BUCKETS), st.sampled_from(["replayed", "eager", "failed"]))))
def test_every_step_was_a_replay_or_a_fallback_or_a_failure(steps: list[tuple[str, str]]):
    metrics = booted("cuda")
    for bucket, how in steps:
        if how == "failed":
            metrics.step_failed(bucket)
        else:
            metrics.step(bucket, seconds=0.01, host_seconds=0.001, live=3, padding=5, replayed=how == "replayed")
    scrape, count = Scrape(metrics), [how for _, how in steps].count
    assert scrape.total("qpack_steps_total") == len(steps)
    assert scrape.total("qpack_graph_replays_total") == count("replayed")
    assert scrape.total("qpack_graph_fallback_total") == count("eager")
    assert scrape.total("qpack_graph_replay_failures_total") == count("failed")
    share = count("replayed") / len(steps) if steps else 1
    assert scrape.value("qpack_graph_replay_success_ratio") == share
    ran = count("replayed") + count("eager")
    assert scrape.value("qpack_step_rows_total", kind="live") == 3 * ran
    assert scrape.value("qpack_step_rows_total", kind="padding") == 5 * ran
    assert scrape.total("qpack_step_seconds_count") == scrape.value("qpack_step_host_seconds_count") == ran
    for bucket in BUCKETS:
        own = [how for name, how in steps if name == bucket]
        assert scrape.value("qpack_steps_total", bucket=bucket) == len(own)
        assert scrape.value("qpack_graph_replays_total", bucket=bucket) == own.count("replayed")
        assert scrape.value("qpack_step_seconds_count", bucket=bucket) == len(own) - own.count("failed")


def test_a_sequence_is_told_from_its_slot_to_its_end():
    metrics = booted()
    metrics.admitted(0.5)
    metrics.first_token(0.75, prompt=20, cached=12)
    metrics.token_gaps([0.01, 0.03])
    metrics.token_gaps([0.02])
    metrics.finished("length", 0.81)
    scrape = Scrape(metrics)
    assert scrape.value("qpack_queue_time_seconds_sum") == 0.5
    assert scrape.value("qpack_time_to_first_token_seconds_sum") == 0.75
    assert scrape.value("qpack_time_per_output_token_seconds_count") == 3
    assert scrape.value("qpack_time_per_output_token_seconds_sum") == pytest.approx(0.06)
    assert scrape.value("qpack_e2e_request_latency_seconds_sum") == 0.81
    assert scrape.value("qpack_prompt_tokens_total") == 20
    assert scrape.value("qpack_cached_prompt_tokens_total") == 12
    assert scrape.value("qpack_generation_tokens_total") == 4
    assert scrape.value("qpack_request_success_total", finish_reason="length") == 1


def test_refusals_cancellations_and_responses_are_told_by_their_labels():
    metrics = booted()
    metrics.refused("queue_full")
    metrics.cancelled("disconnect")
    metrics.response("/v1/completions", 429)
    metrics.response("/v1/models/{model}", 404)
    scrape = Scrape(metrics)
    assert scrape.value("qpack_requests_refused_total", reason="queue_full") == 1
    assert scrape.value("qpack_requests_cancelled_total", reason="disconnect") == 1
    assert scrape.value("qpack_requests_total", endpoint="/v1/completions", status="429") == 1
    assert scrape.value("qpack_requests_total", endpoint="/v1/models/{model}", status="404") == 1
    assert scrape.total("qpack_requests_total") == 2


def test_gauges_hold_what_was_set_last():
    metrics = booted()
    assert Scrape(metrics).value("qpack_ready") == 0
    metrics.set_ready(True)
    metrics.set_load(running=5, waiting=9)
    metrics.set_load(running=4, waiting=0)
    scrape = Scrape(metrics)
    assert scrape.value("qpack_ready") == 1
    assert scrape.value("qpack_num_requests_running") == 4
    assert scrape.value("qpack_num_requests_waiting") == 0


def test_a_scrape_while_the_engine_works_sees_whole_histograms():
    metrics, stop = booted(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            metrics.step(BUCKETS[0], seconds=0.003, host_seconds=0.0001, live=1, padding=0)
            metrics.token_gaps([0.003] * 8)

    engine = threading.Thread(target=work)
    engine.start()
    try:
        for _ in range(20):
            seen: dict[tuple[str, ...], float] = {}
            for name, labels, amount in Scrape(metrics).samples:
                if name.endswith("_bucket"):
                    series = (name, *(their for label, their in labels.items() if label != "le"))
                    assert amount >= seen.get(series, 0)  # cumulative, in the order of the edges
                    seen[series] = amount
                elif (
                    name.endswith("_count") and (series := (name[: -len("count")] + "bucket", *labels.values())) in seen
                ):
                    assert amount == seen[series]
    finally:
        stop.set()
        engine.join()


def test_every_metric_is_an_attribute_by_its_name():
    metrics = booted("cuda")
    names = set(re.findall(r"^# TYPE qpack_(\w+) ", metrics.render().decode("utf-8"), re.MULTILINE))
    assert "step_seconds" in names
    assert [name for name in names if not hasattr(metrics, name.removesuffix("_total"))] == []
