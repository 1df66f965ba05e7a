"""Push and pull through Debian's docker-registry: the same bytes, no more than are lacking, whole or not at all."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from oci_registry import Registry
from qpack_delivery.oci import files as files_module
from qpack_delivery.oci.modelpack import artifact_of
from qpack_delivery.oci.pull import pull
from qpack_delivery.oci.push import push
from qpack_delivery.oci.reference import Reference
from qpack_packager.cli import main
from qpack_schemas.bundle import open_bundle
from qpack_schemas.bundle_files import sha256_of
from qpack_schemas.errors import FitError, IntegrityError, UnsupportedError, UsageError

from .bundles_made import bundle_with, bytes_of, contents


def size_of(bundle: Path) -> int:
    return sum(map(len, contents(bundle).values()))


def test_what_is_pulled_is_what_was_pushed(bundle: Path, place: Reference, tmp_path: Path):
    pushed = push(bundle, place)
    pulled = pull(place, tmp_path / "deeper" / "bundle")
    assert contents(tmp_path / "deeper" / "bundle") == contents(bundle)
    assert pulled.bundle_id == pushed.bundle_id == open_bundle(tmp_path / "deeper" / "bundle").bundle_id
    assert pulled.bytes_moved == size_of(bundle)
    assert sorted(os.listdir(tmp_path / "deeper")) == ["bundle"]


def test_nothing_is_pulled_into_a_bundle(bundle: Path, place: Reference, tmp_path: Path):
    here = Path(shutil.copytree(bundle, tmp_path / "here"))
    push(bundle, place)
    with pytest.raises(UsageError, match="lies in the bundle"):
        pull(place, here / "weights" / "bundle")
    assert contents(here) == contents(bundle)
    assert not pull(place, here).changed


def test_the_same_bundle_has_one_digest_and_is_not_moved_twice(bundle: Path, place: Reference, tmp_path: Path):
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    first, again = push(bundle, place), push(copy, place)
    assert first.digest == again.digest == artifact_of(open_bundle(copy)).digest
    assert (again.bytes_moved, again.bytes_there) == (0, first.bytes_moved + first.bytes_there)


def test_each_file_is_a_blob_by_the_digest_in_the_manifest(bundle: Path, place: Reference, registry: Registry):
    pushed = push(bundle, place)
    for entry in open_bundle(bundle).manifest["files"]:
        assert sha256_of(registry.blob(entry["sha256"])) == entry["sha256"]
    assert sha256_of(registry.blob(pushed.bundle_id)) == pushed.bundle_id


def test_the_registry_has_a_model_as_the_model_spec_says(bundle: Path, place: Reference):
    """The constants are those of docs/spec.md and docs/config.md of github.com/modelpack/model-spec."""
    digest = push(bundle, place).digest
    url = f"http://{place.registry}/v2/{place.repository}"
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    with urlopen(Request(f"{url}/manifests/{digest}", headers=accept)) as answer:
        manifest = json.load(answer)
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    assert manifest["config"]["mediaType"] == "application/vnd.cncf.model.config.v1+json"
    kinds = {layer["annotations"]["org.cncf.model.filepath"]: layer["mediaType"] for layer in manifest["layers"]}
    assert set(kinds) == set(contents(bundle))
    for name, kind in (("weights/00000.safetensors", "weight"), ("manifest.json", "weight.config"),
                       ("model/tokenizer.json", "weight.config"), ("LICENSES/00", "doc")):  # fmt: skip
        assert kinds[name] == f"application/vnd.cncf.model.{kind}.v1.raw"
    with urlopen(f"{url}/blobs/{manifest['config']['digest']}") as answer:
        config = json.load(answer)
    assert set(config) == {"descriptor", "config", "modelfs"}
    assert config["config"]["precision"] == "bfloat16"
    assert config["modelfs"] == {"type": "layers", "diffIds": [layer["digest"] for layer in manifest["layers"]]}


def test_a_tag_moves_and_a_digest_does_not(bundle: Path, place: Reference, tmp_path: Path):
    old = push(bundle, place)
    new = push(bundle_with(bundle, tmp_path / "new", {"LICENSES/00": b"new"}), place)
    fixed = Reference.parse(f"{place.registry}/{place.repository}@{old.digest}")
    assert pull(place, tmp_path / "a").bundle_id == new.bundle_id
    assert pull(fixed, tmp_path / "b").bundle_id == old.bundle_id
    with pytest.raises(UsageError, match="a digest can't be chosen"):
        push(bundle, fixed)


def test_files_beside_the_manifest_travel_too(bundle: Path, place: Reference, tmp_path: Path):
    signed = Path(shutil.copytree(bundle, tmp_path / "signed"))
    (signed / "signature.test").write_bytes(b"by somebody")
    (signed / "signature.dsse.json.partial").write_bytes(b"of one who was killed")
    first = push(bundle, place)
    second = push(signed, place)
    assert first.bundle_id == second.bundle_id
    assert first.digest != second.digest
    pull(Reference.parse(f"{place.registry}/{place.repository}@{first.digest}"), tmp_path / "bundle")
    pulled = pull(place, tmp_path / "bundle")
    assert (pulled.changed, pulled.bytes_moved) == (True, len(b"by somebody"))
    (signed / "signature.dsse.json.partial").unlink()
    assert contents(tmp_path / "bundle") == contents(signed)


def test_going_back_moves_nothing(bundle: Path, place: Reference, tmp_path: Path):
    old = push(bundle, place)
    pull(place, tmp_path / "bundle")
    push(bundle_with(bundle, tmp_path / "new", {"LICENSES/00": b"new"}), place)
    assert pull(place, tmp_path / "bundle").previous == tmp_path / "bundle.previous"
    back = pull(Reference.parse(f"{place.registry}/{place.repository}@{old.digest}"), tmp_path / "bundle")
    assert (back.bundle_id, back.bytes_moved) == (old.bundle_id, 0)
    assert contents(tmp_path / "bundle.previous") == contents(tmp_path / "new")


def test_unchanged_files_lie_on_the_disk_once(bundle: Path, place: Reference, tmp_path: Path):
    push(bundle, place)
    pull(place, tmp_path / "bundle")
    push(bundle_with(bundle, tmp_path / "new", {"LICENSES/00": b"new"}), place)
    pull(place, tmp_path / "bundle")
    both = (tmp_path / name / "LICENSES/01" for name in ("bundle", "bundle.previous"))
    assert len({file.stat().st_ino for file in both}) == 1


def test_where_links_can_not_be_made_files_are_copied(
    bundle: Path, place: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_link(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(source))

    monkeypatch.setattr(files_module.os, "link", no_link)
    push(bundle, place)
    pull(place, tmp_path / "bundle")
    push(bundle_with(bundle, tmp_path / "new", {"LICENSES/00": b"new"}), place)
    assert pull(place, tmp_path / "bundle").bytes_there > size_of(bundle) // 2
    assert contents(tmp_path / "bundle") == contents(tmp_path / "new")


def test_the_very_bundle_is_not_touched(bundle: Path, place: Reference, tmp_path: Path):
    push(bundle, place)
    pull(place, tmp_path / "bundle")
    before = (tmp_path / "bundle").stat()
    again = pull(place, tmp_path / "bundle")
    assert (again.changed, again.bytes_moved, again.previous) == (False, 0, None)
    assert os.path.samestat(before, (tmp_path / "bundle").stat())
    assert sorted(os.listdir(tmp_path)) == ["bundle", "docker"]


def test_a_damaged_file_is_replaced_and_nothing_else_is_moved(bundle: Path, place: Reference, tmp_path: Path):
    push(bundle, place)
    pull(place, tmp_path / "bundle")
    (tmp_path / "bundle" / "LICENSES/03").write_bytes(bytes_of(99, 1 << 17))
    assert pull(place, tmp_path / "bundle").bytes_moved == 1 << 17
    assert contents(tmp_path / "bundle") == contents(bundle)


@pytest.mark.parametrize("there", ["bundle", "bundle.previous"])
def test_what_is_no_bundle_is_left_alone(bundle: Path, place: Reference, tmp_path: Path, there: str):
    (tmp_path / there).mkdir()
    (tmp_path / there / "manifest.json").write_text('{"name": "of a web page"}', encoding="utf-8")
    push(bundle, place)
    with pytest.raises(UsageError, match="is no bundle of qpack"):
        pull(place, tmp_path / "bundle")
    assert sorted(os.listdir(tmp_path)) == sorted([there, "docker"])


def test_a_link_is_not_replaced(bundle: Path, place: Reference, tmp_path: Path):
    push(bundle, place)
    pull(place, tmp_path / "real")
    (tmp_path / "bundle").symlink_to("real")
    with pytest.raises(UsageError, match="symbolic link"):
        pull(place, tmp_path / "bundle")


def test_a_file_system_that_exchanges_nothing_keeps_the_old_bundle(
    bundle: Path, place: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    push(bundle, place)
    pull(place, tmp_path / "bundle")
    push(bundle_with(bundle, tmp_path / "new", {"LICENSES/00": b"new"}), place)
    monkeypatch.setattr(files_module, "_RENAME_EXCHANGE", 1 << 20)  # which no file system knows
    with pytest.raises(UnsupportedError, match="can't be exchanged"):
        pull(place, tmp_path / "bundle")
    assert contents(tmp_path / "bundle") == contents(bundle)
    monkeypatch.undo()
    assert pull(place, tmp_path / "bundle").bytes_moved == 0


def test_a_full_disk_is_seen_before_anything_large_is_moved(
    bundle: Path, place: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    push(bundle, place)
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 16)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FitError, match=r"1,[0-9]{3},[0-9]{3} bytes are still to come, the disk has 65,536"):
        pull(place, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_an_altered_bundle_is_not_pushed(bundle: Path, place: Reference, registry: Registry, tmp_path: Path):
    altered = Path(shutil.copytree(bundle, tmp_path / "altered"))
    (altered / "LICENSES/00").write_bytes(bytes_of(99, 1 << 17))
    with pytest.raises(IntegrityError, match="LICENSES/00"):
        push(altered, place)
    assert not registry.requests("(HEAD|POST|PUT)", place.repository)


def test_the_commands_tell_what_they_did(bundle: Path, place: Reference, tmp_path: Path):
    def run(*arguments: str):
        ran = CliRunner().invoke(main, [*arguments, "--format", "json"])
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)

    pushed = run("push", str(place), str(bundle))
    pulled = run("pull", pushed["reference"], "-o", str(tmp_path / "bundle"))
    assert {name: pulled[name] for name in ("reference", "digest", "bundle_id")} == {
        name: pushed[name] for name in ("reference", "digest", "bundle_id")
    }
    assert pulled["bytes_moved"] == size_of(bundle)
    again = run("pull", f"oci://{place}", "-o", str(tmp_path / "bundle"))
    assert (again["changed"], again["bytes_moved"]) == (False, 0)


def test_without_an_output_the_bundle_is_named_after_its_repository(
    bundle: Path, place: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    push(bundle, place)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ran = CliRunner().invoke(main, ["pull", str(place)])
    assert ran.exit_code == 0, ran.output
    assert contents(tmp_path / "here" / place.repository.split("/")[-1]) == contents(bundle)
    assert len(os.listdir(tmp_path / "here")) == 1


def test_what_is_not_there_is_said_so(place: Reference, tmp_path: Path, free_port: int):
    ran = CliRunner().invoke(main, ["pull", str(place), "-o", str(tmp_path / "bundle")])
    assert (ran.exit_code, "the registry has no such bundle" in ran.stderr) == (1, True)
    ran = CliRunner().invoke(main, ["pull", f"localhost:{free_port}/a", "-o", str(tmp_path / "bundle")])
    assert ran.exit_code == 1
    assert "Connection refused" in ran.stderr
    assert "HTTPS_PROXY" in ran.stderr
    assert os.listdir(tmp_path) == ["docker"]


@pytest.fixture
def free_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where nobody listens; and nobody waits before asking again."""
    import socket

    from qpack_delivery.oci import connection

    monkeypatch.setattr(connection, "_RETRIES", 1)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
