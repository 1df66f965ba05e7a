"""`qpack push`: bundle -> blobs that the registry doesn't have yet -> a manifest under a tag."""

from dataclasses import dataclass
from pathlib import Path

from qpack_delivery.oci.connection import Connection, RegistryError
from qpack_delivery.oci.modelpack import CONFIG_TYPE, IMAGE_MANIFEST, Layer, artifact_of, digest_of
from qpack_delivery.oci.reference import Reference
from qpack_delivery.oci.transfer import Moved, transfer
from qpack_delivery.oci.upload import has_blob, push_blob
from qpack_delivery.progress import Progress, Silent
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import UsageError


@dataclass(frozen=True)
class Pushed:
    digest: str  # of the manifest
    bundle_id: str
    bytes_moved: int  # of blobs; the manifest, which is sent each time, is not counted
    bytes_there: int


def push(bundle: Path, reference: Reference, *, plain_http: bool = False, progress: Progress | None = None) -> Pushed:
    """Every byte of the bundle is checked before the first one leaves. Raises BundleError or RegistryError."""
    if reference.digest:
        raise UsageError(
            "a digest can't be chosen", where=str(reference), remedy="push to a tag; the digest comes out of it"
        )
    opened = open_bundle(bundle)
    artifact = artifact_of(opened)
    connection = Connection(reference, plain_http=plain_http)
    config = Layer("config", len(artifact.config), digest_of(artifact.config), CONFIG_TYPE)
    blobs = {layer.digest: layer for layer in (*artifact.layers, config)}
    moved: list[int] = []

    def read(layer: Layer, offset: int, size: int) -> bytes:
        if layer is config:
            return artifact.config[offset : offset + size]
        with (bundle / layer.path).open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def send(layer: Layer, told: Moved) -> None:
        if has_blob(connection, layer.digest):
            told(layer.bytes)
            return
        push_blob(connection, lambda offset, size: read(layer, offset, size), layer, told)
        moved.append(layer.bytes)

    total = sum(layer.bytes for layer in blobs.values())
    with (progress or Silent()).phase("push", total, "bytes") as step:
        transfer(blobs.values(), send, step)
    answer = connection.request(
        "PUT", f"manifests/{reference.target}", expect=(201,), headers={"Content-Type": IMAGE_MANIFEST},
        body=artifact.manifest,
    )  # fmt: skip
    if (said := answer.headers.get("Docker-Content-Digest", artifact.digest)) != artifact.digest:
        raise RegistryError(f"keeps the manifest as {said}, it is {artifact.digest}", where=str(reference))
    return Pushed(artifact.digest, opened.bundle_id, sum(moved), total - sum(moved))
