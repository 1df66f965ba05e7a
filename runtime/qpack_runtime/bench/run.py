"""Boots a bundle, measures it, and says what came out as one JSON value that bench.v1.schema.json describes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qpack_runtime.bench.bandwidth import copy_bandwidth, read_bandwidth, team_bandwidth
from qpack_runtime.bench.cases import Case, bytes_of, cases_of
from qpack_runtime.bench.host import cores, describe_host, peak_rss_bytes
from qpack_runtime.bench.measure import Meter, Times
from qpack_runtime.boot import Booted, boot
from qpack_runtime.cpu.executor import CpuExecutor
from qpack_runtime.cuda.executor import CudaExecutor
from qpack_schemas.strict_json import JsonValue

SCHEMA = "bench.v1.schema.json"


@dataclass(frozen=True)
class Wanted:
    """What the command was asked for; empty: what the bundle's buckets are for."""

    batches: Sequence[int] = ()
    contexts: Sequence[int] = ()
    prefills: Sequence[int] = ()
    steps: int = 64


def bench(
    path: Path,
    choices: Mapping[str, Any],
    wanted: Wanted,
    told: Callable[[str], None],
) -> JsonValue:
    """Measures the bundle at `path`, booted with `choices`, the keyword arguments of `boot`. `told` is called with a
    line for each case.

    Raises what `boot` raises, FitError for a case that the bundle has no room for, QpackError if the model computes no
    finite logits."""
    booted = boot(path, **choices)
    bundle, engine = booted.bundle, booted.engine
    meter = Meter(engine, bundle.manifest)
    measured: list[tuple[Case, Times]] = []
    for case in cases_of(bundle.manifest, wanted.batches, wanted.contexts, wanted.prefills):
        measured.append((case, Times.of(meter.measure(case, wanted.steps))))
        told(f"{case}: {measured[-1][1].median:.2f} ms")
    peak = peak_rss_bytes()  # before memory is taken to measure its bandwidth
    used, instructions, bandwidth = _machine(booted)
    return {
        "host": describe_host(used, instructions),
        "device": booted.device,
        "mode": booted.facts.get("mode"),
        "bandwidth_gbs": _digits(bandwidth),
        "rows": [row(case, times, bytes_of(case, bundle, engine), bandwidth) for case, times in measured],
        "boot": {f"{phase}_s": _digits(seconds) for phase, seconds in booted.seconds.items()},
        "peak_rss_bytes": peak,
        "x-bundle_id": bundle.bundle_id,
        "x-steps": wanted.steps,
        "x-facts": booted.facts,
        "x-notes": booted.notes,
    }


def row(case: Case, times: Times, step_bytes: int, bandwidth: float) -> JsonValue:
    """`bandwidth`: GB/s. `roofline_ratio` is the time that the bytes take at it over the median: 1 is the limit, unless
    the model is so small that a cache holds it."""
    return {
        "phase": case.phase,
        "batch": case.batch,
        "context": case.context,
        "tokens": case.tokens,
        "median_ms": _digits(times.median),
        "p99_ms": _digits(times.p99),
        "std_ms": _digits(times.std),
        "tokens_per_s": _digits(1000 * case.tokens / times.median),
        "bytes_per_step": step_bytes,
        "roofline_ratio": _digits(step_bytes / bandwidth / 1e6 / times.median),
    }


def _machine(booted: Booted) -> tuple[int | None, str, float]:
    """Of what computes the steps: its threads (None: a GPU), its instructions, and its memory's GB/s."""
    facts, executor = booted.facts, booted.executor
    if isinstance(executor, CudaExecutor):
        return None, facts["target"], copy_bandwidth(*executor.queue)
    if isinstance(executor, CpuExecutor):
        return facts["threads"], facts["code_path"], team_bandwidth(executor.team)
    return cores(), "numpy", read_bandwidth(cores())  # the reference leaves it to numpy, which takes all


def _digits(value: float) -> float:
    """Six of them: more than any clock is good for."""
    return float(f"{value:.6g}")
