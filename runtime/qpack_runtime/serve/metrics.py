"""What the server counts and times, for Prometheus: every metric, its labels, and the calls that keep it.

docs/monitoring.md says what each one means. `step`, `step_failed` and `token_gaps` are for the engine's thread only;
everything else may be called from anywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from qpack_runtime.serve.gc_pauses import GcPauses
from qpack_runtime.serve.histogram import OneWriterHistogram, Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Refusal = Literal["queue_full", "queue_timeout", "draining", "not_ready"]
Cancellation = Literal["disconnect", "timeout", "drain"]
Finish = Literal["stop", "length", "tool_calls"]

STATUSES = (200, 400, 401, 404, 405, 408, 413, 415, 429, 499, 500, 503)

# Upper edges in seconds.
WAIT_EDGES = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60,
)  # fmt: skip
GAP_EDGES = (  # close to each other, because jitter is a ratio of two quantiles
    0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1, 2, 5, 10,
)  # fmt: skip
REQUEST_EDGES = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
STEP_EDGES = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10,
)  # fmt: skip
HOST_EDGES = (
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
)  # fmt: skip


class Metrics:
    """One attribute per metric, named as the metric without `qpack_` and `_total`.

    Made before the boot; `booted` adds what only a booted bundle tells. A step ran as the graph of its bucket, or
    kernel by kernel, or failed: steps = replays + fallbacks + failures. Series whose labels are known are there from
    the beginning, at 0, so that a rate() sees the first increase."""

    def __init__(self, endpoints: Sequence[str]):
        """`endpoints`: the routes whose responses are counted from the beginning."""
        disable_created_metrics()  # made for OpenMetrics; in this format they would be one gauge more a series
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)

        self.requests = counter("qpack_requests", "HTTP responses, by route and status.", ("endpoint", "status"))
        self.requests_refused = counter("qpack_requests_refused", "Requests that were not let in.", ("reason",))
        self.request_success = counter("qpack_request_success", "Sequences that ended.", ("finish_reason",))
        self.requests_cancelled = counter("qpack_requests_cancelled", "Requests cut off before the end.", ("reason",))
        self.prompt_tokens = counter("qpack_prompt_tokens", "Prompt tokens, those found cached included.")
        self.cached_prompt_tokens = counter("qpack_cached_prompt_tokens", "Prompt tokens that a slot held already.")
        self.generation_tokens = counter("qpack_generation_tokens", "Tokens generated.")
        self.steps = counter("qpack_steps", "Steps that ran, those that failed included.", ("bucket",))
        self.step_rows = counter("qpack_step_rows", "Rows of all steps.", ("kind",))
        self.graph_replays = counter("qpack_graph_replays", "Steps that ran as their bucket's graph.", ("bucket",))
        self.graph_replay_failures = counter("qpack_graph_replay_failures", "Steps that failed.")
        self.graph_fallback = Counter(  # of GPUs only: registered by `booted`
            "qpack_graph_fallback", "Steps that ran kernel by kernel, without a graph.", registry=None
        )

        self.ready = gauge("qpack_ready", "1 while requests are let in.")
        self.num_requests_running = gauge("qpack_num_requests_running", "Sequences that hold a slot.")
        self.num_requests_waiting = gauge("qpack_num_requests_waiting", "Sequences in the queue.")
        self.queue_limit = gauge("qpack_queue_limit", "Sequences that the queue takes.")
        self.slots = gauge("qpack_slots", "Sequences that may run at once.")
        self.graph_replay_success_ratio = gauge(
            "qpack_graph_replay_success_ratio", "Steps that ran as a graph, of all since the start."
        )
        self.graph_capture_seconds = gauge("qpack_graph_capture_seconds", "Time that binding all buckets took at boot.")
        self.boot_phase_seconds = gauge("qpack_boot_phase_seconds", "Time of each phase of the boot.", ("phase",))
        self.boot_seconds = gauge("qpack_boot_seconds", "Time of the whole boot.")
        self.arena_bytes = gauge("qpack_arena_bytes", "Size of each arena.", ("arena",))
        self.build_info = gauge(
            "qpack_build_info", "What runs here; always 1.", ("version", "bundle_id", "model", "device", "mode")
        )

        self.queue_time_seconds = histogram("qpack_queue_time_seconds", "From arrival to a slot.", buckets=WAIT_EDGES)
        self.time_to_first_token_seconds = histogram(
            "qpack_time_to_first_token_seconds", "From arrival to the first token.", buckets=WAIT_EDGES
        )
        self.e2e_request_latency_seconds = histogram(
            "qpack_e2e_request_latency_seconds", "From arrival to the last token.", buckets=REQUEST_EDGES
        )
        # Observed at every step or token, by the engine's thread only.
        self.time_per_output_token_seconds = OneWriterHistogram(
            "qpack_time_per_output_token_seconds", "Between two tokens of one sequence.", GAP_EDGES
        )
        self.step_seconds = OneWriterHistogram(
            "qpack_step_seconds", "A step, from its launch to its tokens.", STEP_EDGES, "bucket"
        )
        self.step_host_seconds = OneWriterHistogram(
            "qpack_step_host_seconds", "The engine thread's own work between two steps.", HOST_EDGES
        )
        self.gc_pause_seconds = GcPauses()
        for collector in (
            self.time_per_output_token_seconds, self.step_seconds, self.step_host_seconds, self.gc_pause_seconds,
        ):  # fmt: skip
            self.registry.register(collector)

        self._steps = self._replays = 0
        self.graph_replay_success_ratio.set_function(lambda: self._replays / self._steps if self._steps else 1.0)
        for endpoint in endpoints:
            for status in STATUSES:
                self.requests.labels(endpoint, str(status))
        for metric, values in (
            (self.requests_refused, get_args(Refusal)),
            (self.requests_cancelled, get_args(Cancellation)),
            (self.request_success, get_args(Finish)),
        ):
            for value in values:
                metric.labels(value)
        # What the engine's thread touches every step, without looking it up by labels.
        self._live, self._padding = (self.step_rows.labels(kind) for kind in ("live", "padding"))
        self._host, self._gaps = self.step_host_seconds.series(), self.time_per_output_token_seconds.series()
        self._of_bucket: dict[str, tuple[Counter, Counter, Series]] = {}

    def booted(
        self,
        *,
        version: str,
        bundle_id: str,
        model: str,
        device: str,
        mode: str,
        buckets: Iterable[str],
        slots: int,
        queue_limit: int,
        arena_bytes: Mapping[str, int],
        phase_seconds: Mapping[str, float],
        capture_seconds: float,
    ) -> None:
        """What the boot decided and took. `mode`: how the device computes, as its executor calls it.
        `capture_seconds`: binding or capturing all buckets."""
        self.build_info.labels(version, bundle_id, model, device, mode).set(1)
        self.slots.set(slots)
        self.queue_limit.set(queue_limit)
        self.graph_capture_seconds.set(capture_seconds)
        self.boot_seconds.set(sum(phase_seconds.values()))
        for phase, seconds in phase_seconds.items():
            self.boot_phase_seconds.labels(phase).set(seconds)
        for arena, size in arena_bytes.items():
            self.arena_bytes.labels(arena).set(size)
        if device == "cuda":
            self.registry.register(self.graph_fallback)
        for name in buckets:
            self._of_bucket[name] = (
                self.steps.labels(name), self.graph_replays.labels(name), self.step_seconds.series(name)
            )  # fmt: skip

    def set_ready(self, ready: bool) -> None:
        self.ready.set(ready)

    def set_load(self, running: int, waiting: int) -> None:
        """Sequences that hold a slot, and those in the queue."""
        self.num_requests_running.set(running)
        self.num_requests_waiting.set(waiting)

    def step(
        self, bucket: str, *, seconds: float, host_seconds: float, live: int, padding: int, replayed: bool = True
    ) -> None:
        """A step that gave its tokens. `replayed`: as the bound program or the graph of its bucket."""
        steps, replays, step_seconds = self._of_bucket[bucket]
        steps.inc()
        step_seconds.observe(seconds)
        self._host.observe(host_seconds)
        self._live.inc(live)
        self._padding.inc(padding)
        self._steps += 1
        if replayed:
            replays.inc()
            self._replays += 1
        else:
            self.graph_fallback.inc()

    def step_failed(self, bucket: str) -> None:
        """A step that raised an error instead of giving tokens."""
        self._of_bucket[bucket][0].inc()
        self.graph_replay_failures.inc()
        self._steps += 1

    def admitted(self, queue_seconds: float) -> None:
        """A sequence got its slot."""
        self.queue_time_seconds.observe(queue_seconds)

    def first_token(self, seconds: float, *, prompt: int, cached: int) -> None:
        """The first token of a sequence, `seconds` after the request came; `cached` of its `prompt` tokens were not
        computed again."""
        self.time_to_first_token_seconds.observe(seconds)
        self.prompt_tokens.inc(prompt)
        self.cached_prompt_tokens.inc(cached)
        self.generation_tokens.inc()

    def token_gaps(self, gaps: Sequence[float]) -> None:
        """The later tokens that a step gave, each with the seconds since the one before of its sequence."""
        self.generation_tokens.inc(len(gaps))
        for gap in gaps:
            self._gaps.observe(gap)

    def finished(self, reason: Finish, seconds: float) -> None:
        """A sequence ended by itself, `seconds` after its request came."""
        self.request_success.labels(reason).inc()
        self.e2e_request_latency_seconds.observe(seconds)

    def refused(self, reason: Refusal) -> None:
        self.requests_refused.labels(reason).inc()

    def cancelled(self, reason: Cancellation) -> None:
        self.requests_cancelled.labels(reason).inc()

    def response(self, endpoint: str, status: int) -> None:
        """`endpoint` must be a route, never a path that a client made up: each value stays as a series."""
        self.requests.labels(endpoint, str(status)).inc()

    def render(self) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        return generate_latest(self.registry)
