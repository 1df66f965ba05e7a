"""OpenTelemetry spans of requests, with --tracing: one of a request, and in it the wait, the prompt and the answer of
each sequence. Where they go is what the standard OTEL_* variables of the environment say."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # an extra of its own, imported by whoever asks for spans
    from opentelemetry.sdk.trace import TracerProvider


@dataclass(frozen=True)
class Times:
    """Of one sequence, time.perf_counter() seconds; None for what was not reached."""

    submitted: float
    started: float | None  # it got a slot
    first: float | None  # its first token came


class Tracing:
    """`provider` is where spans go; by default to an OTLP endpoint over HTTP, in batches, from a thread of its own."""

    def __init__(self, provider: "TracerProvider | None" = None):
        if provider is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            provider = TracerProvider()
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._provider = provider
        self._tracer = provider.get_tracer("qpack-runtime")

    def record(
        self, name: str, headers: Mapping[str, str], attributes: Mapping[str, Any], sequences: Iterable[Times]
    ) -> None:
        """A request that has just ended, below the span that its `traceparent` header names, if it has one."""
        from opentelemetry import propagate
        from opentelemetry.trace import SpanKind, set_span_in_context

        sequences, now = list(sequences), time.perf_counter()
        to_epoch = time.time_ns() - int(now * 1e9)

        def at(seconds: float) -> int:
            return int(seconds * 1e9) + to_epoch

        begin = min(times.submitted for times in sequences)
        span = self._tracer.start_span(
            name, propagate.extract(headers), SpanKind.SERVER, dict(attributes), start_time=at(begin)
        )
        inside = set_span_in_context(span)
        for index, times in enumerate(sequences):
            moments = [("queue", times.submitted), ("prefill", times.started), ("decode", times.first), ("", now)]
            reached = [(part, moment) for part, moment in moments if moment is not None]
            for (part, moment), (_, following) in pairwise(reached):
                child = self._tracer.start_span(part, inside, attributes={"sequence": index}, start_time=at(moment))
                child.end(at(following))
        span.end(at(now))

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()
