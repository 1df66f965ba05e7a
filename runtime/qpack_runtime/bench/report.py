"""The report for people: a table, and a bar for what memory allows of each step. ASCII, 80 columns."""

from collections.abc import Iterator, Sequence

from qpack_runtime.bench.compare import key
from qpack_schemas.strict_json import JsonValue

BAR = 40  # marks of a whole one


def as_text(report: JsonValue) -> str:
    """`report` as bench.v1.schema.json has it; with `x-compare`, also beside the other one."""
    return "\n".join([*_head(report), "", *_table(report), "", *_bars(report), *_warnings(report)])


def _head(report: JsonValue) -> Iterator[str]:
    host, mode = report["host"], f", mode {report['mode']}" if report["mode"] else ""
    threads = f", {host['threads']} threads" if host["threads"] else ""
    yield f"{host['cpu']}, {host['cores']} cores, {host['memory_bytes'] / 1e9:.1f} GB of memory"
    yield f"device {report['device']} ({host['instructions']}){mode}{threads}"
    phases = ", ".join(f"{name.removesuffix('_s')} {seconds:.2f}" for name, seconds in report["boot"].items())
    yield f"booted in {sum(report['boot'].values()):.2f} s ({phases})"
    yield f"at most {report['peak_rss_bytes'] / 1e6:,.0f} MB resident"
    yield from (f"note: {line}" for line in report.get("x-notes", []))


def _table(report: JsonValue) -> list[str]:
    speedups = {key(row): f"{row['speedup']:.2f}x" for row in report.get("x-compare", {}).get("rows", [])}
    compared = "x-compare" in report
    rows = [["phase", "batch", "context", "median ms", "p99", "std", "tokens/s", "MB", *["other"] * compared]]
    for row in report["rows"]:
        times = [f"{row[name]:.2f}" for name in ("median_ms", "p99_ms", "std_ms")]
        rate, moved = f"{row['tokens_per_s']:,.1f}", f"{row['bytes_per_step'] / 1e6:,.1f}"
        other = [speedups.get(key(row), "-")] * compared
        rows.append([row["phase"], str(row["batch"]), str(row["context"]), *times, rate, moved, *other])
    note = ["other: how many times as fast as the other report"] if compared else []
    return [*_columns(rows), *note]


def _bars(report: JsonValue) -> Iterator[str]:
    yield f"Of the speed that memory allows, {report['bandwidth_gbs']:.1f} GB/s:"
    rows = [
        [
            row["phase"],
            f"{row['batch']} x {row['context']}",
            f"{100 * row['roofline_ratio']:.1f} %",
            "|" + ("#" * min(BAR, round(BAR * row["roofline_ratio"]))).ljust(BAR) + "|",
        ]
        for row in report["rows"]
    ]
    yield from _columns(rows)


def _warnings(report: JsonValue) -> list[str]:
    return [f"warning: {line}" for line in report.get("x-compare", {}).get("differences", [])]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column is aligned on the left, the others on the right."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
