"""Which versions of a bundle are opened: the same MAJOR, a newer MINOR whose required features are known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drafts import Draft, assert_found, refusal
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import VersionError
from qpack_schemas.manifest import CONTRACT_VERSION, SCHEMA_VERSION

MAJOR, MINOR = SCHEMA_VERSION
NEWER_MINOR = f"{MAJOR}.{MINOR + 1}"


@pytest.fixture(scope="module")
def whole(tiny_bundle: Callable[[str], Path]) -> Draft:
    return Draft.read(tiny_bundle("tiny-qwen3"))


@pytest.fixture
def changed(whole: Draft, tmp_path: Path) -> Callable[..., Path]:
    def write(**fields: Any) -> Path:
        draft = whole.copy()
        draft.manifest |= fields
        return draft.write(tmp_path / "b")

    return write


@pytest.mark.parametrize(
    ("fields", "where", "message"),
    [
        ({"schema_version": f"{MAJOR + 1}.0"}, "schema_version", f"is {MAJOR + 1}.0, this qpack reads {MAJOR}.{MINOR}"),
        ({"schema_version": "0.9"}, "schema_version", "is 0.9, this qpack reads"),
        ({"features_required": ["sparse"]}, "features_required", "needs the unknown feature 'sparse'"),
        (
            {"schema_version": NEWER_MINOR, "features_required": ["sparse"]},
            "features_required",
            "needs the unknown feature 'sparse'",
        ),
        ({"min_runtime": "999.0.0"}, "min_runtime", f"needs qpack 999.0.0 or newer, this is {CONTRACT_VERSION}"),
        ({"min_runtime": "0.1.1"}, "min_runtime", "needs qpack 0.1.1 or newer"),
        ({"min_runtime": "0.10.0"}, "min_runtime", "needs qpack 0.10.0 or newer"),
    ],
)
def test_what_a_newer_qpack_made_is_refused_as_a_matter_of_version(
    changed: Callable[..., Path], fields: dict[str, Any], where: str, message: str
):
    """Its contents may mean anything: nothing is said about damage, and the exit code is another."""
    bundle = changed(**fields, whatever={"comes": "later"})
    findings = refusal(bundle, VersionError)
    assert [finding.where for finding in findings] == [f"manifest.json#/{where}"]
    assert message in findings[0].message
    assert VersionError.exit_code == 7


def test_every_reason_is_given_at_once(changed: Callable[..., Path]):
    bundle = changed(schema_version="9.9", min_runtime="9.9.9", features_required=["b", "a"])
    assert len(refusal(bundle, VersionError)) == 4


def test_an_older_runtime_requirement_opens(changed: Callable[..., Path]):
    open_bundle(changed(min_runtime="0.0.9"))


def test_a_newer_minor_may_say_more(whole: Draft, tmp_path: Path):
    draft = whole.copy()
    draft.manifest |= {"schema_version": NEWER_MINOR, "comment": "later"}
    draft.manifest["model"]["attention_sinks"] = 4
    for program in draft.programs.values():
        program["code"][0]["hint"] = "fuse"
    open_bundle(draft.write(tmp_path / "b"))


def test_a_newer_minor_keeps_every_rule(whole: Draft, tmp_path: Path):
    newer = whole.copy()
    newer.manifest |= {"schema_version": NEWER_MINOR, "comment": "later"}
    name = next(iter(newer.manifest["tensors"]))
    changes: dict[str, Callable[[Draft], object]] = {
        "schema": lambda draft: draft.manifest.update(slots=0),
        "weights": lambda draft: draft.manifest["tensors"].pop(name),
        "memory": lambda draft: draft.manifest["memory"].update(io_bytes=0),
        "operand": lambda draft: draft.edit("silu_mul", "inputs", "hint", "h"),
        "attribute": lambda draft: draft.edit("silu_mul", "attrs", "hint", 1),
        "operation": lambda draft: draft.find("silu_mul")[1].update(op="gelu_mul"),
    }
    for rule, change in changes.items():
        draft = newer.copy()
        change(draft)
        assert refusal(draft.write(tmp_path / rule)), rule
    assert_found(
        refusal(newer.write(tmp_path / "unsealed", resealed=False)), "manifest.json", "the manifest was changed"
    )


NO_VERSIONS = (
    "",
    "0",
    "0.0.0.0",
    "a.b.c",
    "0.1.0\n",
    " 0.1",
    "0.\u00b2.0",
    "0." + "1" * 5000,
    "1" * 5000 + ".0",
    "0.99999999999",
    None,
    ["9"],
)


@pytest.mark.parametrize("index", range(len(NO_VERSIONS)))
@pytest.mark.parametrize("key", ["schema_version", "min_runtime"])
def test_what_is_no_version_is_damage(changed: Callable[..., Path], key: str, index: int):
    assert {finding.where for finding in refusal(changed(**{key: NO_VERSIONS[index]}))} == {f"manifest.json#/{key}"}
