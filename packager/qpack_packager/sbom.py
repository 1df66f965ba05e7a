"""sbom.cdx.json: what a bundle is made of, as a CycloneDX bill of materials with the model as a component.

Written here and not by a library, because it is part of the bundle: its bytes must not depend on a library's version.
Format: https://cyclonedx.org/docs/1.6/json/.
"""

from collections.abc import Mapping, Sequence

from qpack_packager.text_files import TextPart
from qpack_schemas.manifest import Model, SourceFile
from qpack_schemas.strict_json import JsonValue

SBOM = "sbom.cdx.json"
# How model hubs write the licences of Qwen's checkpoints and their kin -> how SPDX does. Others go by their own names.
_SPDX = {"apache-2.0": "Apache-2.0", "mit": "MIT", "bsd-3-clause": "BSD-3-Clause", "cc-by-4.0": "CC-BY-4.0"}


def bill_of_materials(
    model: Model,
    quant: Mapping[str, JsonValue],
    sources: Sequence[SourceFile],
    text: TextPart,
    compilers: Sequence[tuple[str, str]],
) -> dict[str, JsonValue]:
    """The bundle is derived from the checkpoint, its ancestor, whose files are listed with their digests. `compilers`,
    names and versions, made its kernels and are not in it."""
    licenses = _licenses(text)
    checkpoint: dict[str, JsonValue] = {
        "type": "machine-learning-model",
        "bom-ref": "checkpoint",
        "name": model["architecture"],
        **licenses,
        "components": [
            {
                "type": "file",
                "bom-ref": f"checkpoint/{file['path']}",
                "name": file["path"],
                "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
            }
            for file in sources
        ],
    }
    bundle: dict[str, JsonValue] = {
        "type": "machine-learning-model",
        "bom-ref": "bundle",
        "name": f"{model['architecture']} as a qpack bundle",
        **licenses,
        "pedigree": {"ancestors": [checkpoint], "notes": str(quant["scheme"])},
        "modelCard": {
            "modelParameters": {
                "task": "text-generation",
                "architectureFamily": model["family"],
                "modelArchitecture": model["architecture"],
                "inputs": [{"format": "text"}],
                "outputs": [{"format": "text"}],
            }
        },
        "properties": [
            {"name": f"qpack:quant:{name}", "value": str(quant[name])}
            for name in ("method", "bits", "group_size", "lm_head", "embedding")
        ],
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": bundle},
        "components": [
            {
                "type": "application",
                "bom-ref": f"compiler/{name}/{version}",
                "name": name,
                "version": version,
                "scope": "excluded",
                "description": "made the GPU kernels; not part of the bundle",
            }
            for name, version in compilers
        ],
        "dependencies": [{"ref": "bundle", "dependsOn": []}],
    }


def _licenses(text: TextPart) -> dict[str, JsonValue]:
    """What the checkpoint declares, with the files that came with it, which lie in the bundle; or only those."""
    files: list[JsonValue] = [{"name": "qpack:file", "value": path} for path in text.licenses]
    if text.license is None:
        return {"licenses": [{"license": {"name": path}} for path in text.licenses]} if files else {}
    spdx = _SPDX.get(text.license.lower())
    named: dict[str, JsonValue] = {"id": spdx} if spdx else {"name": text.license}
    return {"licenses": [{"license": {**named, **({"properties": files} if files else {})}}]}
