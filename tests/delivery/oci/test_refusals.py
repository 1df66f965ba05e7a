"""What a registry may hold that a pull must not let in: each refused by name, with nothing left beside the output."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from oci_registry import Registry
from qpack_delivery.oci.modelpack import artifact_of, digest_of
from qpack_delivery.oci.pull import pull
from qpack_delivery.oci.push import push
from qpack_delivery.oci.reference import Reference
from qpack_delivery.signing.verify import Trust
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import InputError, IntegrityError, QpackError, TrustError, VersionError
from qpack_schemas.manifest import seal

from .bundles_made import bundle_with, contents
from .spec_registry import SpecRegistry

PATH = "org.cncf.model.filepath"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def held(bundle: Path):
    """A registry in memory that holds the bundle's blobs, and whatever manifest a test makes."""
    with SpecRegistry() as spec:
        for data in contents(bundle).values():
            spec.blobs[digest_of(data)] = data
        yield spec


def changed(bundle: Path, spec: SpecRegistry, change: Change) -> Reference:
    """The bundle's manifest, changed, under a tag of the registry."""
    manifest = json.loads(artifact_of(open_bundle(bundle)).manifest)
    change(manifest)
    spec.manifests["1"] = json.dumps(manifest).encode("ascii")
    return Reference.parse(f"{spec.address}/tests/changed:1")


def layer(manifest: dict[str, Any], path: str) -> dict[str, Any]:
    return next(one for one in manifest["layers"] if one["annotations"][PATH] == path)


def renamed(old: str, new: str) -> Change:
    return lambda manifest: layer(manifest, old)["annotations"].update({PATH: new})


@pytest.mark.parametrize(
    "path", ["../evil", "/etc/passwd", "a/../../evil", "a//b", "./a", "a/.", "..", "a\\b", "a\nb", "weights/\u00e9", ""]
)
def test_a_path_that_leaves_the_bundle_is_refused(path: str, bundle: Path, held: SpecRegistry, tmp_path: Path):
    reference = changed(bundle, held, renamed("LICENSES/00", path))
    with pytest.raises(InputError, match=r"outside of a bundle|no digest, size or file name"):
        pull(reference, tmp_path / "deep" / "bundle")
    assert sorted(os.listdir(tmp_path)) == ["docker"]


def layers_of(manifest: dict[str, Any], *without: str, **values: Any) -> None:
    """Takes layers away, or sets values in that of LICENSES/00."""
    layer(manifest, "LICENSES/00").update(values)
    manifest["layers"] = [one for one in manifest["layers"] if one["annotations"][PATH] not in without]


CHANGES: dict[str, tuple[Change, str]] = {
    "no manifest.json": (lambda it: layers_of(it, "manifest.json"), "so it is no bundle"),
    "no layers": (lambda it: it.update(layers=[]), "so it is no bundle"),
    "layers of another kind": (lambda it: it.update(layers="none"), "is no model"),
    "a file too few": (lambda it: layers_of(it, "LICENSES/00"), "LICENSES/00: is listed in the manifest, and"),
    "another name": (renamed("LICENSES/00", "LICENSES/other"), "LICENSES/00: is listed"),
    "a name twice": (renamed("LICENSES/00", "LICENSES/01"), "two layers"),
    "manifest.json twice": (renamed("LICENSES/00", "manifest.json"), "two layers"),
    "a file too many": (lambda it: it["layers"].append(also(it, "evil.sh")), r"evil\.sh: is not listed"),
    "a large file too many": (lambda it: it["layers"].append(also(it, "evil", 1 << 40)), "evil: is not listed"),
    "another digest": (lambda it: layers_of(it, digest="sha256:" + 64 * "0"), "LICENSES/00: the layer has"),
    "another size": (lambda it: layers_of(it, size=1 << 60), "LICENSES/00: the layer has"),
    "less than nothing": (lambda it: layers_of(it, size=-1), "no digest, size or file name"),
    "a size in words": (lambda it: layers_of(it, size="1"), "no digest, size or file name"),
    "a weak digest": (lambda it: layers_of(it, digest="md5:0"), "no digest, size or file name"),
    "no notes": (lambda it: layers_of(it, annotations={PATH: 7}), "no digest, size or file name"),
    "an endless manifest": (lambda it: layer(it, "manifest.json").update(size=1 << 40), "has 1099511627776 bytes"),
}  # fmt: skip


def also(manifest: dict[str, Any], path: str, size: int | None = None) -> dict[str, Any]:
    """Another layer, of bytes that the registry has."""
    found = layer(manifest, "LICENSES/00")
    return {**found, "size": size or found["size"], "annotations": {PATH: path}}


@pytest.mark.parametrize("name", CHANGES)
def test_a_manifest_that_is_not_a_bundles_is_refused(name: str, bundle: Path, held: SpecRegistry, tmp_path: Path):
    change, message = CHANGES[name]
    with pytest.raises(QpackError, match=message):
        pull(changed(bundle, held, change), tmp_path / "bundle")
    assert os.listdir(tmp_path) == ["docker"]


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[]", b'{"layers": 1, "layers": 2}', b"<html>"])
def test_what_is_no_json_is_refused(raw: bytes, held: SpecRegistry, tmp_path: Path):
    held.manifests["1"] = raw
    with pytest.raises(InputError):
        pull(Reference.parse(f"{held.address}/tests/changed:1"), tmp_path / "bundle")


def test_a_manifest_of_another_digest_is_refused(bundle: Path, held: SpecRegistry, tmp_path: Path):
    asked = "sha256:" + "ab" * 32
    held.manifests[asked] = artifact_of(open_bundle(bundle)).manifest
    with pytest.raises(IntegrityError, match=f"asked for was {asked}") as refused:
        pull(Reference.parse(f"{held.address}/tests/changed@{asked}"), tmp_path / "bundle")
    assert hashlib.sha256(held.manifests[asked]).hexdigest() in str(refused.value)


def test_bytes_altered_in_the_registry_are_refused(bundle: Path, registry: Registry, tmp_path: Path):
    """In the files of Debian's docker-registry, which doesn't look at them again."""
    fresh = bundle_with(bundle, tmp_path / "fresh", {"LICENSES/00": b"as it was"})
    place = Reference.parse(f"{registry.address}/tests/altered:1")
    push(fresh, place)
    digest = digest_of(b"as it was")
    registry.blob(digest).write_bytes(b"as it IS.")
    with pytest.raises(IntegrityError, match="damaged blob") as refused:
        pull(place, tmp_path / "bundle")
    assert digest in str(refused.value)
    assert digest_of(b"as it IS.") in str(refused.value)
    assert not (tmp_path / "bundle").exists()
    registry.blob(digest).write_bytes(b"as it was")
    assert pull(place, tmp_path / "bundle").bundle_id == open_bundle(fresh).bundle_id


@pytest.mark.parametrize("length", [0, 5, 1000])
def test_more_or_fewer_bytes_than_announced_are_refused(
    length: int, bundle: Path, held: SpecRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from qpack_delivery.oci import download

    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    data = (bundle / "model/tokenizer_config.json").read_bytes()
    held.blobs[digest_of(data)] = bytes(length)
    with pytest.raises(QpackError, match=r"sends more|sends nothing|damaged blob"):
        pull(changed(bundle, held, lambda manifest: None), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_bundle_for_another_version_is_refused_before_its_weights_move(
    bundle: Path, held: SpecRegistry, tmp_path: Path
):
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    raw = seal({**manifest, "schema_version": "9.0"})
    held.blobs = {digest_of(raw): raw}  # and no other
    change = {"digest": digest_of(raw), "size": len(raw)}
    with pytest.raises(VersionError, match=r"is 9\.0"):
        pull(changed(bundle, held, lambda found: layer(found, "manifest.json").update(change)), tmp_path / "bundle")


def test_an_unsigned_bundle_is_refused_before_its_weights_move(bundle: Path, held: SpecRegistry, tmp_path: Path):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = Ed25519PrivateKey.generate().public_key()
    (tmp_path / "key.pem").write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    data = (bundle / "manifest.json").read_bytes()
    held.blobs = {digest_of(data): data}
    with pytest.raises(TrustError):
        pull(changed(bundle, held, lambda found: None), tmp_path / "bundle", trust=Trust((tmp_path / "key.pem",)))
    assert not (tmp_path / "bundle").exists()


def test_a_container_image_is_told_from_a_bundle(registry: Registry, tmp_path: Path):
    url = f"http://{registry.address}/v2/tests/image/manifests/1"
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}
    data = json.dumps(index).encode("ascii")
    with urlopen(Request(url, data, {"Content-Type": index["mediaType"]}, method="PUT")):
        pass
    with pytest.raises(QpackError, match=r"no such bundle|is no model"):
        pull(Reference.parse(f"{registry.address}/tests/image:1"), tmp_path / "bundle")
