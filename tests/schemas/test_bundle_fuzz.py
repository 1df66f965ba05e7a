"""Random changes to manifest and programs, resealed: the bundle is refused as damaged or too new, or it runs."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from drafts import Draft
from mutations import mutate
from qpack_runtime.boot import Booted, boot
from qpack_schemas.errors import IntegrityError, VersionError
from qpack_schemas.program import KINDS


@pytest.fixture(scope="module")
def whole(tiny_bundle: Callable[[str], Path]) -> Draft:
    return Draft.read(tiny_bundle("tiny-qwen3_5"))


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
        booted = boot(folder, "reference")  # in numpy an index beyond an array raises
    except (IntegrityError, VersionError) as error:
        event(f"exit {error.exit_code}")
    else:
        event("opened")
        run(booted)
    finally:
        shutil.rmtree(folder)


def run(booted: Booted) -> None:
    """The largest prompt and every decode bucket, up to the last slot and the last id."""
    engine, buckets = booted.engine, booted.bundle.manifest["buckets"]
    rows = {kind: {bucket["rows"] for bucket in buckets if bucket["program"] == kind} for kind in KINDS}
    for slot in range(engine.slots):
        engine.prefill(slot, [engine.vocab - 1] * min(max(rows["prefill"]), engine.context - len(rows["decode"])))
    for count in rows["decode"]:
        engine.decode(range(engine.slots - count, engine.slots))
