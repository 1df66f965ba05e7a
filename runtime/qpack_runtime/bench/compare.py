"""A report beside another one: the same steps, how much faster, and what else differs between them."""

from collections.abc import Iterator
from pathlib import Path

from qpack_runtime.bench.run import SCHEMA
from qpack_schemas.errors import InputError
from qpack_schemas.schema_check import check_schema
from qpack_schemas.strict_json import JsonValue, load_strict

SAME = ("cpu", "cores", "threads", "instructions", "memory_bytes")  # of a host, for times to be comparable


def read_report(path: Path) -> JsonValue:
    """What `bench --format json` printed into a file. Raises InputError if it is something else."""
    document = load_strict(path)
    if findings := check_schema(document, SCHEMA, str(path)):
        remedy = "make it with `qpack-runtime bench BUNDLE --format json`"
        raise InputError(f"is no bench report: {findings[0].message}", where=findings[0].where, remedy=remedy)
    return document


def compare(ours: JsonValue, other: JsonValue) -> JsonValue:
    """`rows`: one for each of ours that the other report has too, by phase, batch and context; `speedup` is the other
    median over ours, above 1 if we are faster. `differences`: lines for whoever reads them."""
    others = {key(row): row for row in other["rows"]}
    rows = [
        {
            **{name: row[name] for name in ("phase", "batch", "context")},
            "other_median_ms": others[key(row)]["median_ms"],
            "speedup": float(f"{others[key(row)]['median_ms'] / row['median_ms']:.6g}"),
        }
        for row in ours["rows"]
        if key(row) in others
    ]
    return {"rows": rows, "differences": list(_differences(ours, other))}


def _differences(ours: JsonValue, other: JsonValue) -> Iterator[str]:
    pairs = [(f"host.{name}", ours["host"][name], other["host"][name]) for name in SAME]
    pairs += [(name, ours.get(name), other.get(name)) for name in ("device", "mode", "x-bundle_id")]
    for name, mine, theirs in pairs:
        if mine != theirs:
            yield f"{name} is {mine} here, {theirs} there"


def key(row: JsonValue) -> tuple[str, int, int]:
    """What rows of two reports are matched by."""
    return row["phase"], row["batch"], row["context"]
