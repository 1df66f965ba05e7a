"""`qpack inspect`: what is in a bundle. Runs on the base install."""

import json
from collections.abc import Iterator
from pathlib import Path

from qpack_packager.commands.memory_use import Parts, memory_lines, memory_parts
from qpack_packager.commands.quant_errors import QuantErrors, read_quant_errors
from qpack_packager.commands.sections import (
    bucket_lines,
    model_text,
    rule_lines,
    scheme_text,
    serving_lines,
    tensor_lines,
    vocabulary_lines,
)
from qpack_packager.commands.typeset import bar, bytes_text, columns, counted, wrapped
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.bundle_files import MANIFEST
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.manifest import compiled_targets
from qpack_schemas.targets import cuda_version

SHOWN = 8  # of the largest tensors and of the worst quantized ones


def summary(bundle: Bundle) -> str:
    """A dozen lines about it."""
    return "\n".join(_summary(bundle, read_quant_errors(bundle)))


def report(bundle: Path, output_format: str) -> str:
    """Everything about the bundle, as text for people or as one JSON object. Raises BundleError if it breaks a rule;
    bytes are not hashed."""
    opened = open_bundle(bundle, digests=False)
    errors = read_quant_errors(opened)
    if output_format == "json":
        return json.dumps(_facts(opened, errors), ensure_ascii=True)
    return "\n".join(_lines(opened, errors))


def _facts(bundle: Bundle, errors: QuantErrors | None) -> dict[str, object]:
    totals = {
        "files": len(_files(bundle)),
        "bytes": sum(_files(bundle).values()),
        "tensors": len(bundle.manifest["tensors"]),
        "memory_parts": _parts(bundle),
        "instructions": {kind: len(program.code) for kind, program in bundle.programs.items()},
        "quantization_errors": errors.to_json() if errors else None,
    }
    facts = {"bundle": str(bundle.path), "bundle_id": bundle.bundle_id, "hashed": False}
    return {**facts, "totals": totals, "manifest": bundle.manifest}


def _summary(bundle: Bundle, errors: QuantErrors | None) -> Iterator[str]:
    manifest, files = bundle.manifest, _files(bundle)
    quant, memory = manifest["quant"], manifest["memory"]
    counts = quant["tensors"]
    yield str(bundle.path)
    yield from wrapped("model", model_text(manifest["model"]))
    yield from wrapped("bundle_id", bundle.bundle_id)
    yield from wrapped("size", f"{bytes_text(sum(files.values()))} in {counted(len(files), 'file')}")
    error = f"; error {errors.range_text()}" if errors else ""
    yield from wrapped("quantized", f"{counted(counts['quantized'], 'tensor')} {_scheme(bundle)}{error}")
    yield from rule_lines(quant.get("rules", []))
    yield from vocabulary_lines(quant, tied=manifest["model"]["tied_embeddings"])
    if quality := manifest.get("quality"):
        limits = {"perplexity ratio": quality["gate"]["max_ppl_ratio"], "mean KL": quality["gate"]["max_kl"]}
        asked = ", ".join(f"{what} up to {limit:g}" for what, limit in limits.items() if limit is not None)
        yield from wrapped("gate", f"{'passed' if quality['passed'] else 'missed'}: {asked}")
    yield from wrapped("kept", f"{counted(counts['kept'], 'tensor')} unquantized")
    dropped = ", ".join(f"{rule['glob']} ({rule['tensors']})" for rule in quant["dropped"]) or "none"
    yield from wrapped("dropped", dropped)
    yield from serving_lines(manifest["slots"], manifest["context"], manifest["model"]["dtype"], manifest["buckets"])
    arenas = ", ".join(f"{arena} {bytes_text(sum(sizes.values()))}" for arena, sizes in _parts(bundle).items())
    yield from wrapped("memory", f"{bytes_text(memory['minimum_device_bytes'])}: {arenas}")
    yield from wrapped("runs on", ", ".join(sorted(manifest["targets"])))


def _lines(bundle: Bundle, errors: QuantErrors | None) -> Iterator[str]:
    manifest = bundle.manifest
    quant = manifest["quant"]
    yield from _summary(bundle, errors)
    declared, kept = manifest["source"].get("license", "none declared"), manifest["source"]["licenses"]
    yield from wrapped("licence", f"{declared}; {', '.join(kept) or 'no file came with the checkpoint'}")
    for note in manifest["source"]["notes"]:
        yield from wrapped("note", note)
    yield ""
    yield from memory_lines(manifest["memory"], _parts(bundle))
    yield ""
    yield from bucket_lines(manifest["buckets"], manifest["memory"])
    if compiled_targets(manifest["targets"]):
        yield ""
        yield from _target_lines(bundle)
    yield ""
    yield from tensor_lines(quant["tensors"], _scheme(bundle), quant["kept"], quant["dropped"])
    yield ""
    yield from _largest_lines(bundle)
    if errors:
        yield ""
        yield from errors.lines(SHOWN)
    yield ""
    yield from _file_lines(bundle)
    yield ""
    yield f"Sizes and rules were checked, bytes were not hashed: qpack validate {bundle.path}"


def _scheme(bundle: Bundle) -> str:
    quant = bundle.manifest["quant"]
    method = quant["method"] + (f" from {quant['imported_from']}" if "imported_from" in quant else "")
    return f"to {scheme_text(quant['bits'], quant['group_size'], quant)}, {method}"


def _parts(bundle: Bundle) -> Parts:
    manifest, shared = bundle.manifest, shared_buffers(bundle.manifest)
    weights = [(name, entry["form"], shared[name]) for name, entry in manifest["tensors"].items()]
    return memory_parts(manifest["memory"], weights, shared, bundle.programs.values())


def _files(bundle: Bundle) -> dict[str, int]:
    """Path -> bytes of every file that belongs to the bundle_id, the manifest included."""
    listed = {entry["path"]: entry["bytes"] for entry in bundle.manifest["files"]}
    return {MANIFEST: (bundle.path / MANIFEST).stat().st_size, **listed}


def _target_lines(bundle: Bundle) -> list[str]:
    """What each GPU target needs and how much of it there is; `qpack kernels` tells more."""
    rows = [("", "launches", "kernels", "code", "registers", "needs CUDA", "memory")]
    sizes = _files(bundle)
    for name, target in compiled_targets(bundle.manifest["targets"]).items():
        kernels = target["kernels"].values()
        most = max(kernel["registers"] or 0 for kernel in kernels)
        rows.append(
            (
                name,
                str(len(bundle.tables[name]["decode"].launches)),
                str(len(kernels)),
                bytes_text(sum(sizes[kernel["file"]] for kernel in kernels)),
                f"to {most}" if most else "-",
                cuda_version(target["min_driver"]),
                bytes_text(target["minimum_device_bytes"]),
            )
        )
    return ["GPU targets: launches of a decode step, and what a host needs", *columns(rows, right=range(1, 7))]


def _largest_lines(bundle: Bundle) -> list[str]:
    shared = shared_buffers(bundle.manifest)
    tensors = sorted(
        ((name, shared[name]) for name in bundle.manifest["tensors"]), key=lambda item: (-item[1].bytes(), item[0])
    )
    whole = bundle.manifest["memory"]["weights_bytes"]
    rows = [
        (name, buffer.dtype, "x".join(map(str, buffer.shape)), bytes_text(buffer.bytes()), bar(buffer.bytes(), whole))
        for name, buffer in tensors[:SHOWN]
    ]
    return [f"Largest of {counted(len(tensors), 'tensor')}", *columns(rows, right={2, 3})]


def _file_lines(bundle: Bundle) -> list[str]:
    files = _files(bundle)
    shown: dict[str, int] = {}
    for path, size in files.items():  # of the many kernels only their folder
        folder = f"{path.rpartition('/')[0]}/" if path.startswith("kernels/") else path
        shown[folder] = shown.get(folder, 0) + size
    rows = [(path, bytes_text(size)) for path, size in shown.items()]
    return [f"Files: {bytes_text(sum(files.values()))}", *columns(rows, right={1})]
