"""Random changes to manifest and programs, resealed: the bundle is refused as damaged or too new, or it runs."""

import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from drafts import Draft
from qpack_runtime.boot import Booted, boot
from qpack_schemas.errors import IntegrityError, VersionError
from qpack_schemas.program import KINDS

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 600)
    | st.sampled_from([2**31 - 1, 2**31, 2**53, 2**64, 10**400, 0.0, 1e-6, 4.0, 1e308, "", "R", "1.0", "0.1.0", "../x"])
    | st.text(max_size=4)
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@pytest.fixture(scope="module")
def whole(tiny_bundle: Callable[[str], Path]) -> Draft:
    return Draft.read(tiny_bundle("tiny-qwen3_5"))


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        document = document[part]
    return document


def mutate(data: st.DataObject, document: Any) -> None:
    """One change: another value, a value from elsewhere in the document, a deletion or a copy."""
    every = list(places(document))
    path = data.draw(st.sampled_from(every), label="place")
    parent, key = at(document, path[:-1]), path[-1]
    match data.draw(st.sampled_from(["value", "elsewhere", "sibling", "delete", "double", "nudge"]), label="change"):
        case "value":
            parent[key] = data.draw(VALUES)
        case "elsewhere":
            parent[key] = copy.deepcopy(at(document, data.draw(st.sampled_from(every), label="from")))
        case "sibling":
            other = data.draw(st.sampled_from(list(parent) if isinstance(parent, dict) else list(range(len(parent)))))
            parent[key], parent[other] = parent[other], parent[key]
        case "delete":
            del parent[key]
        case "double" if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        case "double":
            parent[data.draw(st.text("abx-_.", min_size=1, max_size=5))] = copy.deepcopy(parent[key])
        case _:
            if type(parent[key]) is int:
                parent[key] += data.draw(st.sampled_from([-256, -1, 1, 256, 4096]))


@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_whatever_is_changed_and_resealed_is_refused_or_runs(
    whole: Draft, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    draft = whole.copy()
    for _ in range(data.draw(st.integers(1, 2), label="changes")):
        document = data.draw(st.sampled_from(["manifest", "decode", "prefill"]), label="document")
        target = draft.manifest if document == "manifest" else draft.programs[document]
        if target:
            mutate(data, target)
    folder = draft.write(tmp_path_factory.mktemp("fuzz") / "bundle")
    try:
        booted = boot(folder)
    except (IntegrityError, VersionError) as error:
        event(f"exit {error.exit_code}")
    else:
        event("opened")
        run(booted)
    finally:
        shutil.rmtree(folder)


def run(booted: Booted) -> None:
    """The largest prompt and every decode bucket, up to the last slot and the last id: an index beyond raises."""
    engine, buckets = booted.engine, booted.bundle.manifest["buckets"]
    rows = {kind: {bucket["rows"] for bucket in buckets if bucket["program"] == kind} for kind in KINDS}
    for slot in range(engine.slots):
        engine.prefill(slot, [engine.vocab - 1] * min(max(rows["prefill"]), engine.context - len(rows["decode"])))
    for count in rows["decode"]:
        engine.decode(range(engine.slots - count, engine.slots))
