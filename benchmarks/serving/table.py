"""The report of a load as text."""

from collections.abc import Iterator
from typing import Any

COLUMNS = (
    "tokens/s", "rounds", "requests/s", "ttft p50", "p99", "gap p50", "p99", "std", "answer p50", "p99", "of first",
)  # fmt: skip
LEGEND = (
    "milliseconds from when a request was due; ttft: to the first token; gap: between two tokens of an answer;\n"
    "of first: tokens/s over those of the first server"
)


def as_text(report: dict[str, Any]) -> str:
    return "\n".join([*_head(report), "", *_rows(report["rows"]), "", LEGEND, *_overhead(report["overhead"])])


def _head(report: dict[str, Any]) -> Iterator[str]:
    host, load = report["host"], report["load"]
    yield f"{host['cpu']}, {host['cores']} cores, {host['threads']} threads used: {host['instructions']}"
    prompts = load["prompts"] or f"{load['prompt_tokens']} tokens"
    yield (
        f"{report['rounds']} rounds of {load['requests']} requests, prompts of {prompts}, answers of "
        f"{load['answer_tokens']} tokens, {load['arrivals']}, seed {load['seed']}"
    )
    for server in report["servers"]:
        yield f"{server['name']}: {server.get('version', 'runs already')}"
    if report["same_answers"]:
        yield "every answer is the one that its request gets alone"


def _rows(rows: list[dict[str, Any]]) -> Iterator[str]:
    width = max(len(row["server"]) for row in rows)
    yield " ".join([" " * width, *(f"{column:>13}" for column in COLUMNS)])
    for row in rows:
        rounds, ratio = row["round_tokens_per_s"], row["ratio"]
        cells = [
            f"{row['tokens_per_s']:.1f}", f"{min(rounds):.1f} - {max(rounds):.1f}", f"{row['requests_per_s']:.2f}",
            *(_ms(row["ttft_ms"][name]) for name in ("p50", "p99")),
            *(_ms(row["gap_ms"][name]) for name in ("p50", "p99", "std")),
            *(_ms(row["answer_ms"][name]) for name in ("p50", "p99")),
            "" if ratio is None else f"{ratio:.2f}",
        ]  # fmt: skip
        yield " ".join([f"{row['server']:{width}}", *(f"{cell:>13}" for cell in cells)])
    for row in rows:
        if row["short"]:
            yield f"{row['server']}: {row['short']} of {row['answers']} answers ended before their last token"
        for failure, count in row["failures"].items():
            yield f"{row['server']}: {count} requests failed: {failure}"


def _overhead(overhead: dict[str, Any] | None) -> Iterator[str]:
    if overhead is None:
        return
    host = overhead["host_ms"]
    yield ""
    yield f"batch {overhead['batch']}, {', '.join(map(str, overhead['contexts']))} tokens in the cache and more:"
    yield (
        f"  decode {overhead['server_tokens_per_s']:.1f} tokens/s over HTTP, "
        f"{overhead['executor_tokens_per_s']:.1f} by the executor alone: {100 * overhead['share']:.1f} %"
    )
    yield (
        f"  the engine thread's own work between two steps: {host['mean']:.3f} ms, p99 {host['p99']:.3f} ms, "
        f"of {overhead['steps']} steps"
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
