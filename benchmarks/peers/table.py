"""The result of a comparison as numbers, and the numbers as text."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .comparison import Measured

OURS = "qpack-fast"
COLUMNS = ("median ms", "rounds", "min", "p99", "tokens/s", "times ours")
LEGEND = f"rounds: lowest and highest median of a round; times ours: the median over that of {OURS}"


def rows(measured: Measured) -> list[dict[str, Any]]:
    """One per case and contender with times. `median_ms` is the median over rounds of each round's median, `round_ms`
    are those; `min_ms` and `p99_ms` are of all times; `ratio` is `median_ms` over that of qpack in mode fast."""
    found = []
    for case, contenders in measured.times.items():
        medians = {name: [float(np.median(times)) for times in rounds] for name, rounds in contenders.items() if rounds}
        for name, per_round in medians.items():
            median, every = float(np.median(per_round)), np.concatenate(contenders[name])
            found.append({
                "phase": case.phase, "batch": case.batch, "context": case.context, "contender": name,
                "median_ms": median, "round_ms": per_round, "min_ms": float(every.min()),
                "p99_ms": float(np.percentile(every, 99)), "tokens_per_s": 1000 * case.tokens / median,
                "ratio": median / float(np.median(medians[OURS])) if OURS in medians else None,
            })  # fmt: skip
    return found


def report(measured: Measured, host: dict[str, Any], rounds: int) -> dict[str, Any]:
    return {
        "host": host, "rounds": rounds, "bandwidth_gbs": measured.bandwidths, "contenders": measured.facts,
        "logits_cosine": measured.agreement, "left_out": measured.left_out, "rows": rows(measured),
    }  # fmt: skip


def as_text(report: dict[str, Any]) -> str:
    return "\n".join([*_head(report), *_tables(report["rows"]), "", LEGEND])


def _head(report: dict[str, Any]) -> Iterator[str]:
    host, speeds = report["host"], report["bandwidth_gbs"]
    yield f"{host['cpu']}, {host['cores']} cores, {host['threads']} threads used: {host['instructions']}"
    yield f"memory is read at {np.median(speeds):.1f} GB/s, {min(speeds):.1f} to {max(speeds):.1f} over the rounds"
    yield ""
    for name, facts in report["contenders"].items():
        yield f"{name}: {'; '.join(facts.values())}"
    for name, reason in report["left_out"].items():
        yield f"left out: {name}: {reason}"
    if report["logits_cosine"]:
        yield "cosine of the logits with those of transformers: " + ", ".join(
            f"{name} {cosine:.3f}" for name, cosine in report["logits_cosine"].items()
        )


def _tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    width = max((len(row["contender"]) for row in rows), default=0)
    title = None
    for row in rows:
        if (row["phase"], row["batch"], row["context"]) != title:
            title = row["phase"], row["batch"], row["context"]
            yield ""
            yield f"{row['phase']}, batch {row['batch']}, {row['context']} tokens"
            yield " ".join([" " * width, *(f"{column:>13}" for column in COLUMNS)])
        spread = f"{min(row['round_ms']):.1f} - {max(row['round_ms']):.1f}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        yield " ".join([
            f"{row['contender']:{width}}", f"{row['median_ms']:13.2f}", f"{spread:>13}", f"{row['min_ms']:13.2f}",
            f"{row['p99_ms']:13.2f}", f"{row['tokens_per_s']:13.1f}", f"{ratio:>13}",
        ])  # fmt: skip
