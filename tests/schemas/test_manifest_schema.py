"""The JSON Schemas: the same keys as the types, and no value that Python or a kernel would read as something else."""

import copy
import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from jsonschema import Draft202012Validator

from drafts import Draft, assert_found, refusal
from qpack_schemas.bundle import open_bundle
from qpack_schemas.manifest import Manifest
from qpack_schemas.schema_check import check_schema

SCHEMAS = ("manifest.v1.schema.json", "program.v1.schema.json", "launch_table.v1.schema.json")
MANIFEST = "manifest.v1.schema.json"


def load(name: str) -> dict[str, Any]:
    return json.loads(files("qpack_schemas").joinpath(name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole(tiny_bundle: Callable[[str], Path]) -> Draft:
    return Draft.read(tiny_bundle("tiny-qwen3_5"))


def typed(hint: Any, schema: dict[str, Any], where: str) -> Iterator[tuple[str, set[str], set[str], dict[str, Any]]]:
    """(place, all keys, required keys, schema) of every TypedDict that `hint` is made of."""
    if get_origin(hint) is NotRequired:
        hint = get_args(hint)[0]
    if is_typeddict(hint):
        hints = get_type_hints(hint, include_extras=True)
        optional = {name for name, inner in hints.items() if get_origin(inner) is NotRequired}
        yield where, set(hints), set(hints) - optional, schema
        for name, inner in hints.items():
            yield from typed(inner, schema["properties"].get(name, {}), f"{where}/{name}")
    elif get_origin(hint) is list:
        yield from typed(get_args(hint)[0], schema.get("items", {}), f"{where}/*")
    elif get_origin(hint) is dict:
        yield from typed(get_args(hint)[1], schema.get("additionalProperties", {}), f"{where}/*")


def test_types_and_schema_name_the_same_keys():
    places = set[str]()
    for where, keys, required, schema in typed(Manifest, load(MANIFEST), ""):
        places.add(where)
        assert keys == set(schema["properties"]), where
        assert required == set(schema["required"]), where
    assert {"", "/model/delta", "/tensors/*", "/quant/kept/*", "/files/*", "/memory"} <= places


def objects(schema: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield where, schema
        for key, inner in schema.items():
            yield from objects(inner, f"{where}/{key}")
    elif isinstance(schema, list):
        for index, inner in enumerate(schema):
            yield from objects(inner, f"{where}/{index}")


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_object_is_closed_but_for_x(name: str):
    """Closed, or a map whose keys and values both have a rule."""
    Draft202012Validator.check_schema(load(name))
    found = list(objects(load(name), ""))
    assert found
    for where, schema in found:
        if "properties" in schema:
            assert schema["additionalProperties"] is False, where
            assert {p for p, inner in schema["patternProperties"].items() if inner is True} == {"^x-"}, where
        else:
            assert isinstance(schema["additionalProperties"], dict), where


def test_an_unknown_key_at_our_version_is_refused_and_x_is_free(whole: Draft, tmp_path: Path):
    draft = whole.copy()
    for target in (draft.manifest, draft.manifest["model"], draft.manifest["files"][0], draft.programs["decode"]):
        target["x-note"] = {"any": ["thing", None, 1.5]}
    draft.programs["decode"]["code"][0]["x-note"] = "any"
    draft.programs["decode"]["buffers"]["h"]["x-note"] = "any"
    open_bundle(draft.write(tmp_path / "free"))

    draft = whole.copy()
    draft.manifest["model"]["note"] = "any"
    findings = refusal(draft.write(tmp_path / "manifest"))
    assert_found(findings, "manifest.json#/model", "'note'")

    draft = whole.copy()
    draft.programs["decode"]["code"][3]["note"] = "any"
    findings = refusal(draft.write(tmp_path / "program"))
    assert_found(findings, "programs/decode.json#/code/3", "'note'")


HUGE = (2**31, 2**53, 2**63, 10**400)
SIZES = (0, -1, 4.0, 1e300, "4", None, True, [4], "R", *HUGE)
BYTES = (-256, 256.0, 1e300, "256", None, False, 2**53, 2**64, 10**400)

WRONG: dict[str, tuple[Any, ...]] = {
    "buffers/counts/shape/0": SIZES,
    "buffers/counts/shape": ([], {}, "R", 5),
    "buffers/counts/offset": BYTES,
    "buffers/counts/arena": ("work", "weights", "host", None, ["state"]),
    "buffers/counts/dtype": ("int64", "uint8", "object", None, {}),
    "tensors/norm.weight/shape/0": SIZES,
    "tensors/norm.weight/dtype": ("int16", "F32", None),
    "tensors/norm.weight/form": ("int8", "marlin", "", None),
    "quant/lm_head": ("bf16", "int2", 8, None),
    "quant/embedding": ("int4", "bf16", 8, None),
    "tensors/norm.weight/sha256": ("0" * 63, "0" * 64 + "\n", "F" * 64, 0),
    "tensors/norm.weight/file": ("../weights", "/weights", "weights/00000.safetensors\n", ""),
    "slots": SIZES,
    "context": SIZES,
    "buckets/0/rows": SIZES,
    "buckets/0/context": SIZES,
    "buckets/0/program": ("train", None, ["decode"]),
    "buckets": ([], {}, None),
    "memory/state_bytes": BYTES,
    "memory/work_bytes/decode-b1-c64": BYTES,
    "model/real_vocab_size": SIZES,
    "model/dtype": ("float64", "int8", None),
    "files/0/bytes": BYTES,
    "files/0/sha256": ("0" * 65, "0" * 64 + "\n", None),
    "files": ({}, None, "all", [None]),
    "features_required": ({}, None, "sparse"),
    "checksum": ("", None, "0" * 64 + "\n"),
}
WRONG_IN_PROGRAM: dict[str, tuple[Any, ...]] = {
    "buffers/h/shape/0": (*(size for size in SIZES if size != "R"), "S", "r", "R "),
    "buffers/h/shape/1": SIZES,
    "buffers/h/shape": ([], None, "R"),
    "buffers/h/offset": BYTES,
    "buffers/h/arena": ("state", "weights", None),
    "code/1/op": ("Embed", "embed\n", "os.system('x')", None, 1),
    "code/1/inputs/tokens": ("../x", "tokens\n", "", None, 1),
    "code/1/outputs": ([], None, "y"),
    "code/2/attrs/eps": ("1e-6", None, [], {}),
    "code": ([], {}, None),
    "kind": ("train", None, ["decode"]),
    "activation": ("float64", "int8", None),
}


def findings_with(document: Any, schema: str, pointer: str, value: Any) -> set[str]:
    document = copy.deepcopy(document)
    node, *path = document, *pointer.split("/")
    for part in path[:-1]:
        node = node[int(part)] if isinstance(node, list) else node[part]
    node[int(path[-1]) if isinstance(node, list) else path[-1]] = value
    return {finding.where for finding in check_schema(document, schema, "f")}


@pytest.mark.parametrize("pointer", WRONG)
def test_a_value_of_the_manifest_that_no_kernel_could_use_is_refused_at_its_pointer(whole: Draft, pointer: str):
    for value in WRONG[pointer]:
        assert any(f.startswith(f"f#/{pointer}") for f in findings_with(whole.manifest, MANIFEST, pointer, value)), (
            value
        )


@pytest.mark.parametrize("pointer", WRONG_IN_PROGRAM)
def test_a_value_of_a_program_that_no_kernel_could_use_is_refused_at_its_pointer(whole: Draft, pointer: str):
    program = whole.programs["decode"]
    for value in WRONG_IN_PROGRAM[pointer]:
        assert any(f.startswith(f"f#/{pointer}") for f in findings_with(program, SCHEMAS[1], pointer, value)), value


@pytest.mark.parametrize("name", ["Counts", "counts\n", "a b", "../a", "a/b", "", ".", "a.", ".a", "a..b", "x-a"])
def test_a_name_that_would_need_escaping_is_refused(whole: Draft, name: str):
    draft = whole.copy()
    draft.manifest["buffers"][name] = draft.manifest["buffers"]["counts"]
    assert check_schema(draft.manifest, MANIFEST, "manifest.json")


def test_a_key_of_the_manifest_that_is_missing_is_named(whole: Draft):
    for key in whole.manifest:
        found = check_schema({k: v for k, v in whole.manifest.items() if k != key}, MANIFEST, "manifest.json")
        assert [str(finding) for finding in found] == [f"manifest.json#: {key!r} is a required property"]


def test_a_value_too_deep_to_be_printed_is_refused_and_not_printed(whole: Draft):
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    found = check_schema({**whole.manifest, "slots": deep}, MANIFEST, "manifest.json")
    assert [str(finding) for finding in found] == ["manifest.json#: is nested too deeply"]


def test_a_long_value_is_not_printed_whole(whole: Draft):
    draft = whole.copy()
    draft.manifest["slots"] = ["x" * 100_000]
    draft.manifest["checksum"] = "x" * 100_000
    assert all(len(str(finding)) < 500 for finding in check_schema(draft.manifest, MANIFEST, "manifest.json"))
