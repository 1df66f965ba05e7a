"""`qpack diff`: pointers that lead to what is said, causes before consequences, tensors wherever they lie."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bundles import SMALL, build_bundle
from checkpoints import TINY_QWEN3, read_config, read_tensors, write_checkpoint
from qpack_packager.commands.diff import CONSEQUENCES, compare, differences
from qpack_packager.serving import Options
from qpack_packager.weights import shards
from qpack_schemas.errors import IntegrityError

NAMED = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("abc")}, optional={"x": st.integers(0, 2)}),
    unique_by=lambda entry: entry["name"],
)
SCALARS = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0, "", "a"])
JSON = st.recursive(
    SCALARS | NAMED,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "~1/", "x"]), inner),
)


def resolve(document: Any, pointer: str) -> Any:
    """RFC 6901, section 4."""
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        document = document[int(token)] if isinstance(document, list) else document[token]
    return document


def read_manifest(bundle: Path) -> dict[str, Any]:
    return json.loads((bundle / "manifest.json").read_bytes())


@pytest.fixture(scope="module")
def small(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle `small` with fewer buckets and slots."""
    options = Options(SMALL.batches[:1], SMALL.contexts, SMALL.prefills, slots=2)
    return build_bundle(TINY_QWEN3, tmp_path_factory.mktemp("narrow") / "bundle", options)


@given(JSON, JSON)
@example([1], [1.0])  # equal to Python only
@example({"a": True}, {"a": 1})
@example({"~1/": 0}, {})
def test_values_differ_exactly_where_a_difference_is_found(a: Any, b: Any):
    found = list(differences(a, b))
    same = json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    assert (not found) == same
    for each in found:
        said = each.to_json()
        assert {"a", "b"} & said.keys()
        if each.name == "order":
            continue
        document = a if "a" in said else b
        assert json.dumps(resolve(document, each.pointer)) == json.dumps(said.get("a", said.get("b")))


def test_equal_bundles_are_said_to_be_equal_in_one_line(small: Path, tmp_path: Path):
    copy = Path(shutil.copytree(small, tmp_path / "copy"))
    text, equal = compare(small, copy, "text")
    assert equal
    assert "\n" not in text
    facts = json.loads(compare(small, copy, "json")[0])
    assert (facts["equal"], facts["causes"], facts["consequences"]) == (True, [], [])
    assert not any(facts["tensors"].values())


def test_pointers_lead_to_both_values(small: Path, narrow: Path):
    facts = json.loads(compare(small, narrow, "json")[0])
    a, b = read_manifest(small), read_manifest(narrow)
    assert not facts["equal"]
    for each in [*facts["causes"], *facts["consequences"]]:
        document = a if "a" in each else b
        assert resolve(document, each["pointer"]) == each["a" if "a" in each else "b"]
    assert {"pointer": "/slots", "name": "", "a": 4, "b": 2} in facts["causes"]


def test_a_bucket_that_went_is_one_difference_although_all_behind_it_moved(small: Path, narrow: Path):
    facts = json.loads(compare(small, narrow, "json")[0])
    gone = [each for each in facts["causes"] if each["pointer"].startswith("/buckets")]
    assert [(each["name"], "b" in each) for each in gone] == [("decode-b4-c128", False), ("decode-b4-c64", False)]


def test_what_follows_comes_behind_the_causes(small: Path, narrow: Path):
    facts = json.loads(compare(small, narrow, "json")[0])
    assert {each["pointer"].split("/")[1] for each in facts["causes"]} == {"buckets", "slots"}
    assert {each["pointer"].split("/")[1] for each in facts["consequences"]} == set(CONSEQUENCES)
    text, equal = compare(small, narrow, "text")
    assert not equal
    assert text.index("/slots: 4 -> 2") < text.index("/memory/state_bytes")
    assert all(len(line) <= 80 for line in text.splitlines()[2:])


def test_the_shard_a_tensor_lies_in_is_no_difference_of_the_tensor(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shards, "SHARD_BYTES", 20_000)
    sharded = build_bundle(TINY_QWEN3, tmp_path / "sharded")
    assert len(list((sharded / "weights").iterdir())) > len(list((small / "weights").iterdir()))
    facts = json.loads(compare(small, sharded, "json")[0])
    assert not facts["equal"]
    assert not any(facts["tensors"].values())
    assert facts["causes"] == []


def test_the_tensors_that_changed_are_named(small: Path, tmp_path: Path):
    tensors = dict(read_tensors(TINY_QWEN3))
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = -tensors[name]
    model = write_checkpoint(tmp_path / "model", read_config(TINY_QWEN3), tensors)
    changed = build_bundle(model, tmp_path / "bundle")
    facts = json.loads(compare(small, changed, "json")[0])["tensors"]
    assert (facts["added"], facts["removed"]) == ({}, {})
    # The signed scale turns over and the codes stay, or both change where code -8 has no counterpart.
    assert "layers.1.mlp.down.scale" in facts["changed"]
    assert set(facts["changed"]) <= {"layers.1.mlp.down.scale", "layers.1.mlp.down.q"}
    fields = facts["changed"]["layers.1.mlp.down.scale"]
    assert [field["pointer"] for field in fields] == ["/tensors/layers.1.mlp.down.scale/sha256"]
    assert "changed  layers.1.mlp.down.scale: sha256" in compare(small, changed, "text")[0]


def test_tensors_of_one_side_only_are_added_or_removed(small: Path, tiny_bundle: Callable[[str], Path]):
    other = tiny_bundle("tiny-qwen3_5")
    a, b = (read_manifest(bundle)["tensors"].keys() for bundle in (small, other))
    facts = json.loads(compare(small, other, "json")[0])["tensors"]
    assert (facts["added"].keys(), facts["removed"].keys()) == (b - a, a - b)
    assert facts["changed"].keys() <= a & b
    back = json.loads(compare(other, small, "json")[0])["tensors"]
    assert (back["added"].keys(), back["removed"].keys()) == (a - b, b - a)
    assert "more; --format json shows all" in compare(small, other, "text")[0]


@pytest.mark.parametrize("damaged_side", [0, 1])
def test_a_damaged_bundle_is_an_error_and_no_difference(damaged_side: int, small: Path, tmp_path: Path):
    copy = Path(shutil.copytree(small, tmp_path / "copy"))
    weights = copy / "weights" / "00000.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    pair = (copy, small) if damaged_side == 0 else (small, copy)
    with pytest.raises(IntegrityError, match=r"weights/00000\.safetensors"):
        compare(*pair, "text")
