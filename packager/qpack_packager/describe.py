"""The manifest of a bundle: everything decided at build, with nothing of the time, the host or the directory in it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from qpack_packager.checkpoint.source_tensor import as_packed
from qpack_packager.cuda.package import describe_targets
from qpack_packager.prepare import Prepared
from qpack_packager.quantize.groups import GROUP
from qpack_packager.text_files import TextPart
from qpack_packager.weights.add import Weights
from qpack_packager.weights_policy import FORMS as FORMS_ASKED
from qpack_schemas.bundle_rules import FORMS, vocabulary_forms
from qpack_schemas.manifest import (
    CONTRACT_VERSION,
    SCHEMA_VERSION,
    FileEntry,
    Kernel,
    Model,
    Source,
    SourceFile,
    Tensor,
)
from qpack_schemas.memory import account
from qpack_schemas.strict_json import JsonValue

SCHEMES = {
    False: "int4, symmetric, signed scale per group, value = (code - 8) * scale",
    True: "int4, zero and scale per group, value = (code - zero) * scale",
}


def describe(
    prepared: Prepared,
    sources: list[SourceFile],
    weights: Weights,
    files: Sequence[FileEntry],
    text: TextPart,
    kernels: Mapping[str, Mapping[str, Kernel]],
) -> dict[str, JsonValue]:
    """All fields but `files` and `checksum`, which the writer adds. `kernels`: target -> its kernels by name."""
    lowered, serving = prepared.lowered, prepared.serving
    weights_bytes = sum(entry["bytes"] for entry in files if entry["path"].startswith("weights/"))
    memory = account(weights_bytes, lowered.buffers, lowered.programs, serving.buckets)
    return {
        "schema_version": ".".join(map(str, SCHEMA_VERSION)),
        "min_runtime": CONTRACT_VERSION,
        "features_required": [],
        "model": describe_model(prepared),
        "source": _source(prepared, sources, text),
        "quant": {**describe_quant(prepared), **_calibrated(weights)},
        "tensors": _tensors(prepared, weights.places),
        "buffers": {name: buffer.to_json() for name, buffer in lowered.buffers.items()},
        "slots": serving.slots,
        "context": serving.context,
        "buckets": list(serving.buckets),
        "capture_order": capture_order(prepared, memory["work_bytes"]),
        "memory": memory,
        "targets": {"cpu": {}, **describe_targets(prepared.targets, kernels, files, memory, serving.buckets)},
        "text": text.files,
        "probes": text.probes,
        "reproducibility": "recorded-environment" if weights.calibration else "any-host",
    }


def describe_quant(prepared: Prepared) -> dict[str, JsonValue]:
    """Those fields of `quant` that are known before any weight is read."""
    lowered = prepared.lowered
    imported = [module for module in lowered.modules if module.imported]
    asymmetric = any(f"{module.name}.zero" in module.tensors for module in imported)
    sources = [prepared.checkpoint.tensors[rows.tensor] for module in imported for rows in module.sources]
    formats = {packed.format for packed in map(as_packed, sources) if packed}
    scales = {module.tensors[f"{module.name}.scale"].dtype for module in lowered.modules if module.form == "marlin"}
    quant: dict[str, JsonValue] = {
        "method": "import" if imported else prepared.serving.method,
        "scheme": SCHEMES[asymmetric],
        "bits": 4,
        "group_size": GROUP,
        "scale_dtype": scales.pop() if len(scales) == 1 else "bfloat16",
        **vocabulary_forms(lowered.programs["decode"]),
        **lowered.accounting.to_manifest(),
    }
    if formats:
        quant["imported_from"] = ", ".join(sorted(formats))
    if prepared.serving.rules:
        quant["rules"] = [{"glob": glob, "form": FORMS_ASKED[form]} for glob, form in prepared.serving.rules]
    return quant


def _calibrated(weights: Weights) -> dict[str, JsonValue]:
    """Those that say how a calibrated method went."""
    calibration = weights.calibration
    return {
        "calibration_sha256": calibration.text_sha256 if calibration else None,
        "fallbacks": [line["module"] for line in weights.log if line.get("fallback")],
        **({"environment": dict(calibration.environment)} if calibration else {}),
    }


def capture_order(prepared: Prepared, work_bytes: Mapping[str, int]) -> list[str]:
    """Largest first, so that what does not fit fails at once."""
    buckets = sorted(prepared.serving.buckets, key=lambda b: (-work_bytes[b["name"]], -b["context"], b["name"]))
    return [bucket["name"] for bucket in buckets]


def describe_model(prepared: Prepared) -> Model:
    config = prepared.checkpoint.config
    model: Model = {
        "family": config.family,
        "architecture": config.architecture,
        "layers": list(config.layers),
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "attention_heads": config.attention_heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rotary_dim": config.rotary_dim,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_norm_eps,
        "max_context": config.max_context,
        "vocab_size": config.vocab_size,
        "real_vocab_size": prepared.tokenizer.real_vocab_size,
        "tied_embeddings": prepared.lowered.tied,
        "eos_token_ids": list(prepared.tokenizer.eos_token_ids),
        "dtype": prepared.serving.dtype,
    }
    if config.delta:
        model["delta"] = asdict(config.delta)  # type: ignore[typeddict-item]
    return model


def _source(prepared: Prepared, files: list[SourceFile], text: TextPart) -> Source:
    notes = [*prepared.checkpoint.notes, *text.notes]
    source: Source = {"uri": None, "revision": None, "files": files, "licenses": text.licenses, "notes": notes}
    return source if text.license is None else {**source, "license": text.license}


def _tensors(prepared: Prepared, places: Mapping[str, tuple[str, str]]) -> dict[str, Tensor]:
    forms = {
        name: FORMS.get((instruction.op, operand.name), "dense")
        for program in prepared.lowered.programs.values()
        for instruction in program.code
        for operand, name in instruction.operands()
    }
    tensors: dict[str, Tensor] = {}
    for module in prepared.lowered.modules:
        for name, buffer in module.tensors.items():
            file, digest = places[name]
            tensors[name] = {
                "file": file,
                "dtype": buffer.dtype,
                "shape": list(buffer.extent(1)),
                "logical_shape": list(module.shape),
                "sha256": digest,
                "sources": [rows.tensor + (f"#{rows.part}" if rows.part else "") for rows in module.sources],
                "form": forms[name],
            }
    return tensors
