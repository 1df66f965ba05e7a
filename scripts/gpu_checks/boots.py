"""Pieces `capture` and `boot`: the same bundle booted again and again, each time in a process of its own."""

from pathlib import Path
from statistics import median
from typing import Any

from qpack_runtime.boot import boot
from qpack_runtime.cuda.executor import CudaExecutor
from qpack_schemas.bundle import open_bundle
from qpack_schemas.manifest import compiled_targets

from .alone import alone
from .outcome import Outcome, Settings

TIMED_BOOTS = 5


def check_capture(path: Path, settings: Settings) -> Outcome:
    """Every boot makes the same graphs and takes the planned bytes; a captured stream gives those graphs too."""
    facts = [alone(_executor_facts, path, False, settings.allow_ptx) for _ in range(settings.boots)]
    captured = alone(_executor_facts, path, True, settings.allow_ptx)
    first, failures = facts[0], list[str]()
    for number, one in enumerate([*facts, captured], 1):
        what = f"boot {number}" if number <= len(facts) else "the captured stream"
        for bucket, fingerprint in first["graphs"].items():
            if one["graphs"].get(bucket) != fingerprint:
                failures.append(
                    f"{what}: the graph of {bucket} is {one['graphs'].get(bucket)}, boot 1 had {fingerprint}"
                )
        if one["arena_bytes"] != one["planned_bytes"]:
            failures.append(f"{what}: arenas take {one['arena_bytes']}, the manifest plans {one['planned_bytes']}")
        if one["eager_launches"]:
            failures.append(f"{what}: {one['eager_launches']} launches without a graph")
    taken, planned = [one["taken_bytes"] for one in facts], sum(first["planned_bytes"].values())
    table = {"boots": len(facts), "graphs": len(first["graphs"]), "planned bytes": planned}
    table |= {"taken at least": min(taken), "taken at most": max(taken), "beside the plan": max(taken) - planned}
    return Outcome(
        f"{len(facts)} boots made the same {len(first['graphs'])} graphs, and so did a captured stream"
        if not failures
        else f"{len(facts)} boots and a captured stream don't agree",
        failures,
        {
            "Device memory of a boot": [table],
            "Graphs": [{"bucket": b, "fingerprint": f} for b, f in first["graphs"].items()],
        },
    )


def time_boots(path: Path, settings: Settings) -> Outcome:
    """Seconds of each phase, the files being in the page cache from the second boot on."""
    boots = [alone(_boot_facts, path, settings.allow_ptx) for _ in range(min(TIMED_BOOTS, settings.boots))]
    phases = list(boots[0]["seconds"])
    lines = [
        {"phase": phase, "first s": seconds[0], "median s": median(seconds), "slowest s": max(seconds)}
        for phase in phases
        if (seconds := [one["seconds"][phase] for one in boots])
    ]
    totals = [sum(one["seconds"].values()) for one in boots]
    lines.append({"phase": "all", "first s": totals[0], "median s": median(totals), "slowest s": max(totals)})
    speeds = [one["upload_gb_per_s"] for one in boots]
    what = f"a boot takes {median(totals):.2f} s (median of {len(boots)}); weights go up at {median(speeds):.2f} GB/s"
    return Outcome(what, tables={"Seconds of a boot": lines})


def _executor_facts(path: Path, capture: bool, allow_ptx: bool) -> dict[str, Any]:
    bundle = open_bundle(path, digests=False)
    executor = CudaExecutor(bundle, capture=capture, allow_ptx=allow_ptx)
    planned, target = bundle.manifest["memory"], compiled_targets(bundle.manifest["targets"])[executor.target]
    arenas = {
        "weights": planned["weights_bytes"],
        "state": planned["state_bytes"],
        "io": planned["io_bytes"],
        "work": max(target["work_bytes"].values()),
    }
    return {**executor.facts, "planned_bytes": arenas}


def _boot_facts(path: Path, allow_ptx: bool) -> dict[str, Any]:
    booted = boot(path, "cuda", allow_ptx=allow_ptx)
    return {"seconds": booted.seconds, "upload_gb_per_s": booted.facts["upload_gb_per_s"]}
