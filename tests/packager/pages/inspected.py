"""What the tests of the inspect page read of it, and of the bundle's files as plain JSON."""

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from qpack_schemas.manifest import seal

NAMES = ["tiny-qwen3", "tiny-qwen3_5"]
KINDS = [*NAMES, "cuda", "bare"]  # of `bundle_of`
SECTIONS = [
    "model", "memory", "work", "traffic", "speed", "quantization", "quality", "buckets", "gpus", "tensors", "text",
    "provenance",
]  # fmt: skip

# Each row of a table: text of its cells, and the exact numbers in them.
ROWS = """(table) => [...table.querySelectorAll("tbody tr")].map((row) => [
    [...row.cells].map((cell) => cell.textContent.trim()),
    [...row.querySelectorAll("data")].map((data) => Number(data.value))])"""

Rows = list[tuple[list[str], list[float]]]


def manifest_of(bundle: Path) -> dict[str, Any]:
    return json.loads((bundle / "manifest.json").read_bytes())


def rewritten(bundle: Path, quant_log: bytes | None = b"", **fields: Any) -> Path:
    """The bundle in place, with other fields in its manifest, and with another log, or none, unless that is empty."""
    manifest = manifest_of(bundle) | fields
    if quant_log is None:
        (bundle / "quant_log.jsonl").unlink()
        manifest["files"] = [entry for entry in manifest["files"] if entry["path"] != "quant_log.jsonl"]
    elif quant_log:
        (bundle / "quant_log.jsonl").write_bytes(quant_log)
        next(entry for entry in manifest["files"] if entry["path"] == "quant_log.jsonl")["bytes"] = len(quant_log)
    (bundle / "manifest.json").write_bytes(seal(manifest))
    return bundle


def quant_log(bundle: Path) -> list[dict[str, Any]]:
    lines = (bundle / "quant_log.jsonl").read_text(encoding="utf-8").splitlines()
    return [source | {"bits": module["bits"]} for module in map(json.loads, lines) for source in module["sources"]]


def table(page: Page, label: str) -> Rows:
    return page.get_by_role("region", name=label, exact=True).evaluate(ROWS)


def number(page: Page, term: str) -> float:
    """The exact number behind the first value of a term."""
    value = page.locator("dl > div").filter(has=page.locator("dt").get_by_text(term, exact=True)).locator("data").first
    return float(value.get_attribute("value") or "nan")


def titles(page: Page, chart: str) -> list[str]:
    """What the marks of charts with such a name say."""
    found = page.locator(f'svg.chart[aria-label^="{chart}"] .mark > title')
    return [text or "" for text in found.all_text_contents()]


def bytes_in(title: str) -> int:
    found = re.search(r"([\d,]+) bytes", title)
    assert found, title
    return int(found[1].replace(",", ""))
