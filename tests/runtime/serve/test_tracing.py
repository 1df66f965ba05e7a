"""Spans of a request, as OpenTelemetry's own SDK receives them."""

import time
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from qpack_runtime.serve.tracing import Times, Tracing


def recorded(headers: dict[str, str], *sequences: Times) -> dict[str, Any]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Tracing(provider).record("/v1/completions", headers, {"request_id": "r"}, sequences)
    return {span.name: span for span in exporter.get_finished_spans()}


def test_the_parts_of_a_request_follow_each_other_within_it():
    now = time.perf_counter()
    spans = recorded({}, Times(now - 3, now - 2, now - 1))
    whole, queue, prefill, decode = (spans[name] for name in ("/v1/completions", "queue", "prefill", "decode"))
    assert whole.start_time == queue.start_time
    assert (queue.end_time, prefill.end_time, decode.end_time) == (
        prefill.start_time,
        decode.start_time,
        whole.end_time,
    )
    assert abs((queue.end_time - queue.start_time) - 1e9) < 1e6
    assert {span.parent.span_id for span in (queue, prefill, decode)} == {whole.context.span_id}
    assert abs(whole.end_time - time.time_ns()) < 60e9
    assert whole.attributes["request_id"] == "r"


def test_what_a_request_did_not_reach_has_no_span():
    now = time.perf_counter()
    assert recorded({}, Times(now - 1, None, None)).keys() == {"/v1/completions", "queue"}


def test_a_traceparent_header_is_the_parent():
    """The header of the W3C's Trace Context recommendation, from its own example."""
    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    span = recorded({"traceparent": header}, Times(time.perf_counter(), None, None))["/v1/completions"]
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
