"""The bill of materials of a bundle, as CycloneDX's own library reads it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from bundles import ASSETS, build_bundle
from qpack_packager.sbom import SBOM
from qpack_schemas.bundle_files import sha256_of

TINY = ASSETS / "tiny-qwen3"
CARDS = {
    "---\nlicense: apache-2.0\n---\n# Qwen\n": {"id": "Apache-2.0"},
    "---\nlicense: other\nlicense_name: qwen-research\n---\n": {"name": "qwen-research"},
    "---\nlicense: other\n---\n": {"name": "other"},
}


def bill(bundle: Path) -> dict:
    return json.loads((bundle / SBOM).read_text(encoding="utf-8"))


def with_card(folder: Path, card: bytes) -> Path:
    shutil.copytree(TINY, folder)
    (folder / "README.md").write_bytes(card)
    (folder / "LICENSE").write_text("Do as you like.\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3_5"])
def test_the_bill_of_a_bundle_keeps_cyclonedx_schema(name: str, tiny_bundle: Callable[[str], Path]):
    text = (tiny_bundle(name) / SBOM).read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_model_is_a_component_derived_from_files_that_are_what_they_are_said_to_be(
    tiny_bundle: Callable[[str], Path],
):
    (checkpoint,) = bill(tiny_bundle("tiny-qwen3"))["metadata"]["component"]["pedigree"]["ancestors"]
    assert checkpoint["type"] == "machine-learning-model"
    digests = {file["name"]: file["hashes"][0]["content"] for file in checkpoint["components"]}
    assert "model.safetensors" in digests
    assert digests == {name: sha256_of(TINY / name) for name in digests}


@pytest.mark.parametrize("card", CARDS)
def test_the_licence_that_a_model_card_declares_is_carried_over(card: str, tmp_path: Path):
    bundle = build_bundle(with_card(tmp_path / "model", card.encode("utf-8")), tmp_path / "bundle")
    text = (bundle / SBOM).read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    component = bill(bundle)["metadata"]["component"]
    for each in (component, component["pedigree"]["ancestors"][0]):
        (entry,) = each["licenses"]
        files = [{"name": "qpack:file", "value": "LICENSES/LICENSE"}]
        assert entry["license"] == {**CARDS[card], "properties": files}
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["source"]["license"] == CARDS[card].get("name", "apache-2.0")


@pytest.mark.parametrize(
    "card", [b"# no front matter\n", b"---\n[\n---\n", b"\xff\xfe\x00---\n", b"---\nlicense: 3\n---\n"]
)
def test_a_model_card_that_says_no_licence_stops_no_build(card: bytes, tmp_path: Path):
    bundle = build_bundle(with_card(tmp_path / "model", card), tmp_path / "bundle")
    (entry,) = bill(bundle)["metadata"]["component"]["licenses"]
    assert entry["license"] == {"name": "LICENSES/LICENSE"}
    assert "license" not in json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["source"]
