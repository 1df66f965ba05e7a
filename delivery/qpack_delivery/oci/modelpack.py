"""A bundle as an OCI artifact by the CNCF's model-spec (ModelPack): a raw layer per file, a config, a manifest.

https://github.com/modelpack/model-spec, docs/spec.md, docs/config.md and docs/annotations.md. Nothing in it depends on
when, where or by whom it is made, so that a bundle has one digest.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from qpack_delivery.oci.reference import DIGEST
from qpack_delivery.signing.detached import PARTIAL
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_files import MANIFEST, sha256_of
from qpack_schemas.errors import InputError
from qpack_schemas.manifest import Manifest
from qpack_schemas.strict_json import dump_compact, parse_strict

IMAGE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.cncf.model.manifest.v1+json"
CONFIG_TYPE = "application/vnd.cncf.model.config.v1+json"
_PATH = "org.cncf.model.filepath"
_TITLE = "org.opencontainers.image.title"  # by which general clients, such as oras, name what they pull
_KINDS = {"weights": "weight", "kernels": "code", "programs": "weight.config", "model": "weight.config"}
_NO_WEIGHTS = ("marlin_scales", "marlin_zeros", "int8_scales", "rope_table")  # forms of what is no parameter


@dataclass(frozen=True)
class Layer:
    """A file of a bundle and its blob."""

    path: str
    bytes: int
    digest: str  # sha256:...
    media_type: str


@dataclass(frozen=True)
class Artifact:
    layers: list[Layer]
    config: bytes
    manifest: bytes

    @property
    def digest(self) -> str:
        """Of the manifest, by which the artifact can be pulled for ever."""
        return digest_of(self.manifest)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def artifact_of(bundle: Bundle) -> Artifact:
    """Of an open bundle with all that lies beside the manifest's files: signatures, provenance, quality; what a killed
    `qpack sign` left is none of them."""
    layers = [_layer(entry["path"], entry["bytes"], entry["sha256"]) for entry in bundle.manifest["files"]]
    listed = {layer.path for layer in layers}
    for file in bundle.path.iterdir():
        if file.is_file() and file.name not in listed and file.suffix != PARTIAL:
            layers.append(_layer(file.name, file.stat().st_size, sha256_of(file)))
    layers.sort(key=lambda layer: layer.path)
    config = dump_compact(_config(bundle.manifest, layers))
    manifest = {
        "schemaVersion": 2,
        "mediaType": IMAGE_MANIFEST,
        "artifactType": ARTIFACT_TYPE,
        "config": _descriptor(CONFIG_TYPE, digest_of(config), len(config)),
        "layers": [
            _descriptor(layer.media_type, layer.digest, layer.bytes)
            | {"annotations": {_PATH: layer.path, _TITLE: layer.path}}
            for layer in layers
        ],
    }
    return Artifact(layers, config, dump_compact(manifest))


def _layer(path: str, size: int, sha256: str) -> Layer:
    folder = PurePosixPath(path).parts[0]
    kind = "weight.config" if path == MANIFEST else _KINDS.get(folder, "doc")
    return Layer(path, size, f"sha256:{sha256}", f"application/vnd.cncf.model.{kind}.v1.raw")


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size}


def _config(manifest: Manifest, layers: list[Layer]) -> dict[str, Any]:
    model, source, quant = manifest["model"], manifest["source"], manifest["quant"]
    told = {"sourceURL": source["uri"], "revision": source["revision"]}
    parameters = sum(
        math.prod(tensor["logical_shape"])
        for tensor in manifest["tensors"].values()
        if tensor["form"] not in _NO_WEIGHTS
    )
    return {
        "descriptor": {"family": model["family"], **{key: value for key, value in told.items() if value}},
        "config": {
            "architecture": "transformer",
            "format": "qpack",
            "paramSize": _in_words(parameters),
            "precision": model["dtype"],
            "quantization": f"{quant.get('imported_from', quant['method'])}-int{quant['bits']}",
        },
        "modelfs": {"type": "layers", "diffIds": [layer.digest for layer in layers]},
    }


def _in_words(count: int) -> str:
    """596049920 -> 596.0M, as the model-spec writes sizes."""
    for size, letter in ((10**9, "B"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return f"{count / 1000:.1f}K"


def read_layers(raw: bytes, where: str) -> dict[str, Layer]:
    """Path -> layer of the manifest `raw`, which came from a stranger. Raises InputError if it isn't a bundle's."""

    def refuse(problem: str, remedy: str = "") -> InputError:
        return InputError(problem, where=where, remedy=remedy)

    try:
        document = parse_strict(raw.decode("utf-8"), where)
    except UnicodeDecodeError:
        raise refuse("the manifest is not UTF-8") from None
    if not isinstance(document, dict) or not isinstance(entries := document.get("layers"), list):
        kind = document.get("mediaType") if isinstance(document, dict) else None
        raise refuse(
            f"is no model but {_said(kind or 'something else')}",
            "name a bundle that `qpack push` put there, by its digest",
        )
    layers: dict[str, Layer] = {}
    for index, entry in enumerate(entries):
        layer = _read_layer(entry)
        if layer is None:
            raise refuse(f"layer {index} has no digest, size or file name: {_said(entry)}")
        if not _stays_inside(layer.path):
            raise refuse(f"layer {index} wants to be written to {_said(layer.path)}, outside of a bundle")
        if layer.path in layers:
            raise refuse(f"two layers are {_said(layer.path)}")
        layers[layer.path] = layer
    if MANIFEST not in layers:
        kind = document.get("artifactType") or document.get("mediaType")
        raise refuse(
            f"holds no {MANIFEST}, so it is no bundle but {_said(kind)}", "name a bundle that `qpack push` put there"
        )
    return layers


def _read_layer(entry: Any) -> Layer | None:
    if not isinstance(entry, dict) or not isinstance(notes := entry.get("annotations"), dict):
        return None
    digest, size, path = entry.get("digest"), entry.get("size"), notes.get(_PATH, notes.get(_TITLE))
    if not (isinstance(digest, str) and DIGEST.fullmatch(digest) and type(size) is int and size >= 0):
        return None
    return Layer(path, size, digest, str(entry.get("mediaType"))) if isinstance(path, str) and path else None


def _stays_inside(path: str) -> bool:
    """Relative and in one spelling, with no part that a file system could take for another place."""
    parts = path.split("/")
    plain = path.isascii() and path.isprintable() and "\\" not in path
    return plain and all(part not in ("", ".", "..") for part in parts)


def _said(value: object) -> str:
    return json.dumps(value)[:160]
