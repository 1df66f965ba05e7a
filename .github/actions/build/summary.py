"""The job summary of a build, in Markdown: `python summary.py FOLDER BUNDLE`.

FOLDER holds what `qpack build` and `qpack inspect` have said as JSON. Standard library only."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
WORST = 5  # modules that are shown


def table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell(one) for one in line) + " |" for line in lines)


def cell(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def bundle(report: Facts) -> str:
    manifest, totals = report["manifest"], report["totals"]
    model, memory, quant = manifest["model"], manifest["memory"], manifest["quant"]
    rows = [
        ("bundle_id", f"`{report['bundle_id']}`"),
        ("model", f"{model['architecture']}, {len(model['layers'])} layers, {model['dtype']}"),
        ("size", f"{megabytes(totals['bytes'])} in {totals['files']} files"),
        ("weights", f"{quant['method']}, head {quant['lm_head']}, embedding {quant['embedding']}"),
        ("serves", f"{manifest['slots']} slots of {manifest['context']} positions, {len(manifest['buckets'])} buckets"),
        ("memory", megabytes(memory["minimum_device_bytes"])),
        ("targets", ", ".join(sorted(manifest["targets"]))),
    ]
    return table(("bundle", ""), rows)


def texts(report: Facts) -> str:
    found = report["manifest"]["text"]
    odd = [(one["path"], one["encoding"], one["known_by"]) for one in found if one["encoding"] != "utf-8" or one["bom"]]
    if not odd:
        return f"All {len(found)} text files were UTF-8."
    return table(("text file", "was", "known by"), odd)


def quality(measured: Facts) -> str:
    gate = measured["gate"]
    limits = {"ppl_ratio": gate["max_ppl_ratio"], "kl_mean": gate["max_kl"]}
    names = {
        "perplexity": "perplexity",
        "ppl_ratio": "over the model's own",
        "kl_mean": "KL divergence, mean",
        "kl_p99": "KL divergence, p99",
        "top1_agreement": "same first choice",
    }
    rows = [
        (name, f"{measured[key]:.6g}", "none" if limits.get(key) is None else f"{limits[key]:g}")
        for key, name in names.items()
    ]
    verdict = "passed" if gate["passed"] else "**missed**"
    return table((f"quality on {measured['tokens']} tokens", "measured", "limit"), rows) + f"\n\nGate: {verdict}."


def modules(report: Facts) -> str:
    errors = report["totals"]["quantization_errors"]
    rows = [(one["tensor"], one["bits"], f"{one['relative_rms_error']:.4f}") for one in errors["worst_first"][:WORST]]
    return table(("largest errors of rounding", "bits", "relative"), rows)


def failure(error: Facts) -> str:
    rows = [(name, error[name]) for name in ("message", "where", "remedy", "exit_code") if error.get(name)]
    findings = [(one["where"], one["message"]) for one in error.get("findings", [])]
    return table(("no bundle", ""), rows + findings)


def main(folder: Path, path: Path) -> str:
    said = folder / "qpack-build.json"
    text = said.read_text(encoding="utf-8") if said.is_file() else ""
    built = json.loads(text) if text.strip() else {"error": {"message": "`qpack build` ended without a word"}}
    if "error" in built:
        return failure(built["error"])
    report = json.loads((folder / "qpack-inspect.json").read_text(encoding="utf-8"))
    parts = [bundle(report), texts(report), modules(report)]
    measured = path / "quality.json"
    if measured.is_file():
        parts.insert(1, quality(json.loads(measured.read_text(encoding="utf-8"))))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # pyright: ignore[reportAttributeAccessIssue]
    print("## qpack build\n\n" + main(Path(sys.argv[1]), Path(sys.argv[2])))
