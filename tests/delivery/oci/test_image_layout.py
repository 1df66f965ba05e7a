"""`qpack export --format oci`: a layout that registries' tools read, with the digest that a push gives."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from oci_registry import Registry
from qpack_delivery.oci.pull import pull
from qpack_delivery.oci.push import push
from qpack_delivery.oci.reference import Reference
from qpack_packager.cli import main

from .bundles_made import bytes_of, contents


def exported(bundle: Path, output: Path) -> Path:
    ran = CliRunner().invoke(main, ["export", str(bundle), "--format", "oci", "-o", str(output)])
    assert ran.exit_code == 0, ran.output
    return output


def test_every_blob_lies_under_its_digest(bundle: Path, registry: Registry, tmp_path: Path):
    layout = exported(bundle, tmp_path / "layout")
    found = contents(layout)
    blobs = {name: data for name, data in found.items() if name.startswith("blobs/")}
    assert set(found) - set(blobs) == {"index.json", "oci-layout"}
    assert all(hashlib.sha256(data).hexdigest() == Path(name).name for name, data in blobs.items())
    assert json.loads(found["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(found["index.json"])["manifests"]
    assert entry["digest"] == push(bundle, Reference.parse(f"{registry.address}/tests/layout:1")).digest
    manifest = json.loads(blobs[f"blobs/sha256/{entry['digest'][7:]}"])
    named = [manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"]), entry["digest"]]
    assert {f"blobs/sha256/{digest[7:]}" for digest in named} == set(blobs)


def test_the_same_bundle_gives_the_same_layout(bundle: Path, tmp_path: Path):
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    assert contents(exported(bundle, tmp_path / "a")) == contents(exported(copy, tmp_path / "b"))


def test_a_layout_is_whole_or_not_there(bundle: Path, tmp_path: Path):
    altered = Path(shutil.copytree(bundle, tmp_path / "altered"))
    (altered / "LICENSES/00").write_bytes(bytes_of(99, 1 << 17))
    ran = CliRunner().invoke(main, ["export", str(altered), "--format", "oci", "-o", str(tmp_path / "layout")])
    assert ran.exit_code == 5
    assert sorted(os.listdir(tmp_path)) == ["altered", "docker"]
    (tmp_path / "layout").mkdir()
    ran = CliRunner().invoke(main, ["export", str(bundle), "--format", "oci", "-o", str(tmp_path / "layout")])
    assert (ran.exit_code, "exists already" in ran.stderr) == (2, True)


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")
def test_skopeo_copies_a_layout_into_a_registry(bundle: Path, registry: Registry, tmp_path: Path):
    layout = exported(bundle, tmp_path / "layout")
    place = f"{registry.address}/tests/skopeo:1"
    command = ["skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false", f"oci:{layout}", f"docker://{place}"]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr
    pull(Reference.parse(place), tmp_path / "bundle")
    assert contents(tmp_path / "bundle") == contents(bundle)
