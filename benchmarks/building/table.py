"""The result as numbers, and the numbers as text."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from .contenders import OURS, Contender
from .measure import Measured

COLUMNS = ("median s", "rounds", "CPU s", "peak MB", "output MB", "times ours")
LEGEND = (
    "seconds: wall clock, of all steps; CPU s: of all threads; peak: resident, of the largest process; "
    f"times ours: the median over that of {OURS}"
)


def rows(measured: Measured) -> list[dict[str, Any]]:
    """One per contender that was measured. `seconds` and `cpu_seconds` are medians over rounds, `peak_bytes` is the
    highest; `ratio` is `seconds` over that of qpack."""
    found = list[dict[str, Any]]()
    ours = [build.seconds for build in measured.builds.get(OURS, [])]
    for name, builds in measured.builds.items():
        if not builds:
            continue
        per_round = [build.seconds for build in builds]
        found.append({
            "contender": name, "seconds": median(per_round), "round_seconds": per_round,
            "cpu_seconds": median(build.cpu_seconds for build in builds),
            "peak_bytes": max(build.peak_bytes for build in builds), "output_bytes": builds[-1].result_bytes,
            "steps": {step: median(build.steps[step].seconds for build in builds) for step in builds[0].steps},
            "ratio": median(per_round) / median(ours) if ours else None,
        })  # fmt: skip
    return found


def report(
    measured: Measured, contenders: Sequence[Contender], host: Mapping[str, Any], model: Mapping[str, Any], rounds: int
) -> dict[str, Any]:
    facts = {contender.name: dict(contender.facts) for contender in contenders}
    return {
        "host": dict(host), "model": dict(model), "rounds": rounds, "contenders": facts,
        "left_out": measured.left_out, "rows": rows(measured),
    }  # fmt: skip


def as_text(report: Mapping[str, Any]) -> str:
    return "\n".join([*_head(report), "", *_table(report["rows"]), "", LEGEND])


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    host, model = report["host"], report["model"]
    yield f"{host['cpu']}, {host['cores']} cores, {host['threads']} threads used"
    yield f"{model['shape']}, random weights, {model['bytes'] / 1e9:.2f} GB; {report['rounds']} rounds"
    yield ""
    for name, facts in report["contenders"].items():
        yield f"{name}: {'; '.join(facts.values())}"
    for name, reason in report["left_out"].items():
        yield f"left out: {name}: {reason}"


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    width = max((len(row["contender"]) for row in rows), default=0)
    yield " ".join([" " * width, *(f"{column:>13}" for column in COLUMNS)])
    for row in rows:
        spread = f"{min(row['round_seconds']):.1f} - {max(row['round_seconds']):.1f}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        yield " ".join([
            f"{row['contender']:{width}}", f"{row['seconds']:13.1f}", f"{spread:>13}", f"{row['cpu_seconds']:13.1f}",
            f"{row['peak_bytes'] / 1e6:13.0f}", f"{row['output_bytes'] / 1e6:13.0f}", f"{ratio:>13}",
        ])  # fmt: skip
        if len(row["steps"]) > 1:
            yield "  " + ", ".join(f"{step} {seconds:.1f} s" for step, seconds in row["steps"].items())
