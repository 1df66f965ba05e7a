"""quality.json follows its schema, lies beside the bundle without being part of it, and only the verdict goes into the
manifest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints, is_typeddict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafts import Draft, assert_found, refusal
from qpack_packager.evaluate.figures import Figures
from qpack_packager.evaluate.quality import TOP, Quality, encode, manifest_entry, rounded
from qpack_schemas.bundle import open_bundle
from qpack_schemas.schema_check import check_schema
from qualities import measured


def test_types_and_schema_name_the_same_keys():
    document = json.loads(encode(measured()))
    assert document.keys() == get_type_hints(Quality).keys() | {*TOP, "mode", "reference_perplexity"}
    assert {name: document[name] for name in TOP} == {name: document["modes"]["fast"][name] for name in TOP}
    assert (document["mode"], document["reference_perplexity"]) == ("fast", document["reference"]["perplexity"])
    assert document["modes"]["fast"].keys() == get_type_hints(Figures).keys()
    assert is_typeddict(Quality)


@pytest.mark.parametrize(
    "wrong",
    [
        {"text_sha256": "AB" * 32},
        {"tokens": 0},
        {"device": "tpu"},
        {"modes": {}},
        {"modes": {"quick": {}}},
        {"modules": [{"tensor": "a"}]},
        {"other": 1},
        {"gate": {"max_kl": 0, "max_ppl_ratio": None, "passed": True, "findings": []}},
    ],
)
def test_the_schema_refuses(wrong: dict[str, Any]):
    whole = json.loads(encode(measured()))
    assert check_schema(whole, "quality.v1.schema.json", "quality.json") == []
    assert check_schema(whole | wrong, "quality.v1.schema.json", "quality.json") != []


def test_the_file_is_canonical_with_six_digits():
    data = encode(measured())
    document = json.loads(data)
    assert document["modes"]["fast"]["perplexity"] == 9.12346
    assert document["modes"]["fast"]["kl_mean"] == 1.23457e-05
    assert document["modes"]["fast"]["kl_histogram"]["tokens"] == [0, 5, 6]
    assert data == (json.dumps(document, sort_keys=True, indent=1) + "\n").encode("ascii")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_keeps_six_digits(value: float):
    assert rounded(value) == pytest.approx(value, rel=5.1e-6, abs=1e-320)
    assert rounded([{"a": value}])[0]["a"] == rounded(rounded(value))


def test_it_may_lie_at_the_root_of_a_bundle_and_nowhere_else(tiny_bundle: Callable[[str], Path], tmp_path: Path):
    draft = Draft.read(tiny_bundle("tiny-qwen3"))
    folder = draft.write(tmp_path / "bundle")
    before = open_bundle(folder).bundle_id
    for name in ("quality.json", "quality.html"):
        (folder / name).write_bytes(encode(measured()))
    assert open_bundle(folder).bundle_id == before
    for name in ("model/quality.json", "quality.json.bak", "quality.txt", "xquality.json"):
        (folder / name).write_text("{}", encoding="utf-8")
        assert_found(refusal(folder), name, "not listed")
        (folder / name).unlink()


def test_the_manifest_holds_the_terms_and_the_verdict_and_no_measured_number(
    tiny_bundle: Callable[[str], Path], tmp_path: Path
):
    draft = Draft.read(tiny_bundle("tiny-qwen3"))
    entry = manifest_entry(measured())
    assert entry == {
        "gate": {"max_ppl_ratio": 1.02, "max_kl": None},
        "text_sha256": "ab" * 32,
        "tokens": 11,
        "passed": False,
    }
    draft.manifest["quality"] = entry
    assert open_bundle(draft.write(tmp_path / "whole")).manifest.get("quality") == entry
    draft.manifest["quality"] = entry | {"perplexity": 9.0}
    assert_found(refusal(draft.write(tmp_path / "other")), "manifest.json#/quality", "'perplexity'")
