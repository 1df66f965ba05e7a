"""`qpack export --format oci`: a bundle as an OCI image layout, a directory that registries' tools copy from.

OCI image specification 1.1, image-layout.md.
"""

from pathlib import Path

from qpack_delivery.oci.files import can_link, link_or_copy, sync
from qpack_delivery.oci.modelpack import ARTIFACT_TYPE, IMAGE_MANIFEST, artifact_of, digest_of
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_files import MANIFEST
from qpack_schemas.strict_json import dump_compact

_TAG = "latest"  # what tools call it that want a name


def bytes_to_copy(bundle: Bundle, folder: Path) -> int:
    """What a layout in `folder` takes of its disk: nothing worth counting where files of the bundle can be linked."""
    if can_link(bundle.path / MANIFEST, folder):
        return 0
    return sum({layer.digest: layer.bytes for layer in artifact_of(bundle).layers}.values())


def write_image_layout(bundle: Bundle, folder: Path) -> str:
    """Fills the empty directory `folder`; files of the bundle are linked where the file system can do that. Returns the
    digest of the manifest, which is the one that a registry gets by a push."""
    artifact = artifact_of(bundle)
    blobs = folder / "blobs" / "sha256"
    for layer in artifact.layers:
        if not (blob := blobs / layer.digest.removeprefix("sha256:")).exists():
            link_or_copy(bundle.path / layer.path, blob)
    for data in (artifact.config, artifact.manifest):
        _write(blobs / digest_of(data).removeprefix("sha256:"), data)
    entry = {
        "mediaType": IMAGE_MANIFEST,
        "artifactType": ARTIFACT_TYPE,
        "digest": artifact.digest,
        "size": len(artifact.manifest),
        "annotations": {"org.opencontainers.image.ref.name": _TAG},
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    _write(folder / "index.json", dump_compact(index))
    _write(folder / "oci-layout", dump_compact({"imageLayoutVersion": "1.0.0"}))
    return artifact.digest


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
        sync(file)
    except OSError as error:  # a full disk does not say which one
        error.filename = error.filename or str(file)
        raise
