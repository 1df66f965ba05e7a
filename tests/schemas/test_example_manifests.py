"""The manifests that are committed as examples follow the published schema, as any validator reads it."""

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from bundles import ASSETS
from qpack_schemas.manifest import checksum_of

EXAMPLES = sorted((ASSETS / "manifests").glob("*.json"))


def test_there_is_an_example():
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_follows_the_schema_and_is_undamaged(example):
    manifest = json.loads(example.read_text(encoding="utf-8"))
    schema = json.loads(files("qpack_schemas").joinpath("manifest.v1.schema.json").read_text(encoding="utf-8"))
    assert [error.json_path for error in Draft202012Validator(schema).iter_errors(manifest)] == []
    assert manifest["checksum"] == checksum_of(manifest)


def test_a_build_gives_the_example_on_every_host(tiny_bundle: Callable[[str], Path]):
    """Byte for byte, weights included by their digests: on another processor, in another locale, in another year."""
    ours = (tiny_bundle("tiny-qwen3") / "manifest.json").read_bytes()
    assert ours == (ASSETS / "manifests" / "tiny-qwen3.json").read_bytes()
