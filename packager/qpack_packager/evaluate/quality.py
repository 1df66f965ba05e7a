"""quality.json: what was measured of a bundle, of which text, and whether it passed its gate.

It lies beside the bundle's own files, like provenance: the numbers depend on the arithmetic of the host that measured,
and the same build must give the same bytes."""

from collections.abc import Mapping
from typing import Any, TypedDict

from qpack_packager.evaluate.figures import Figures
from qpack_packager.evaluate.gate import Gate
from qpack_schemas.schema_check import check_schema
from qpack_schemas.strict_json import JsonValue, dump_canonical

QUALITY, QUALITY_PAGE = "quality.json", "quality.html"  # at the bundle's root
TOP = ("perplexity", "perplexity_stderr", "ppl_ratio", "kl_mean", "kl_p99", "kl_max", "top1_agreement")
SCHEMA = "quality.v1.schema.json"


class ReferenceFigures(TypedDict):
    perplexity: float
    perplexity_stderr: float | None


class ModuleError(TypedDict):
    tensor: str  # of the checkpoint
    part: str  # "", or which lines of it
    bits: int
    relative_rms_error: float


class Verdict(TypedDict):
    max_ppl_ratio: float | None
    max_kl: float | None
    passed: bool
    findings: list[str]


class Quality(TypedDict):
    text_sha256: str
    tokens: int  # that were predicted: all but the first of each window
    windows: int
    window_length: int
    device: str
    instructions: str  # of the host: a path of the CPU kernels, numpy, or a GPU target
    reference: ReferenceFigures | None
    modes: dict[str, Figures]  # fast, exact; or the device that has one way only
    modules: list[ModuleError]  # the worst of the quantization log
    gate: Verdict | None


def verdict(gate: Gate, modes: Mapping[str, Figures]) -> Verdict:
    findings = gate.check(modes)
    return {
        "max_ppl_ratio": gate.max_ppl_ratio,
        "max_kl": gate.max_kl,
        "passed": not findings,
        "findings": findings,
    }


def encode(quality: Quality) -> bytes:
    """The file, in canonical JSON, floats rounded to 6 significant digits. The figures of the first mode, which most
    readers want, stand at its top as well."""
    mode, figures = next(iter(quality["modes"].items()))
    reference = quality["reference"]
    top = {name: figures[name] for name in TOP}
    top |= {"mode": mode, "reference_perplexity": None if reference is None else reference["perplexity"]}
    document = rounded({**quality, **top})
    if findings := check_schema(document, SCHEMA, QUALITY):
        raise AssertionError(f"what was measured breaks its schema: {findings[0]}")
    return dump_canonical(document)


def rounded(value: Any) -> JsonValue:
    """The same JSON with every float at 6 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def manifest_entry(quality: Quality) -> JsonValue:
    """What the manifest says of the gate: its terms and the verdict, and no number that a host measured."""
    gate = quality["gate"]
    assert gate is not None, "a build without a gate says nothing of quality"
    return {
        "gate": {"max_ppl_ratio": gate["max_ppl_ratio"], "max_kl": gate["max_kl"]},
        "text_sha256": quality["text_sha256"],
        "tokens": quality["tokens"],
        "passed": gate["passed"],
    }
