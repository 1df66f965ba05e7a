"""A runtime whose tokenizer or templates work differently from the build's does not boot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundles import ASSETS, build_bundle
from drafts import Draft
from qpack_packager.probes import CHATS, TEXTS
from qpack_runtime import chat_template
from qpack_runtime.boot import boot
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import IntegrityError


@pytest.fixture(scope="module")
def whole(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3_5")


def test_every_probe_is_in_the_manifest_with_what_other_libraries_give(whole: Path):
    from transformers import PreTrainedTokenizerFast

    probes = open_bundle(whole).manifest["probes"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(ASSETS / "tiny-qwen3_5" / "tokenizer.json"))
    assert [probe["text"] for probe in probes["texts"]] == list(TEXTS)
    for probe in probes["texts"]:
        assert tokenizer(probe["text"])["input_ids"] == probe["ids"]
    assert [probe["messages"] for probe in probes["chats"]] == list(CHATS)


def test_a_whole_bundle_boots(whole: Path):
    boot(whole)


def test_other_ids_for_a_probe_text_stop_the_boot(whole: Path, tmp_path: Path):
    draft = Draft.read(whole)
    draft.manifest["probes"]["texts"][3]["ids"][0] += 1
    with pytest.raises(IntegrityError, match=r"probes/texts/3"):
        boot(draft.write(tmp_path / "bundle", resealed=True))


def test_another_rendering_of_a_probe_chat_stops_the_boot(whole: Path, monkeypatch: pytest.MonkeyPatch):
    class Shouting(chat_template.ImmutableSandboxedEnvironment):
        def __init__(self, **options: Any):
            super().__init__(**options, finalize=lambda value: str(value).upper())

    monkeypatch.setattr(chat_template, "ImmutableSandboxedEnvironment", Shouting)
    with pytest.raises(IntegrityError, match=r"probes/chats/0"):
        boot(whole)


def test_a_chat_that_the_template_refuses_is_recorded_as_refused(tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    for path in (ASSETS / "tiny-qwen3_5").iterdir():
        if path.name != "chat_template.jinja":
            (model / path.name).symlink_to(path)
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ strftime_now('%Y') }}"
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    bundle = build_bundle(model, tmp_path / "bundle")
    digests = [probe["sha256"] for probe in open_bundle(bundle).manifest["probes"]["chats"]]
    assert digests[1] is None
    assert digests[0] is not None
    boot(bundle)
