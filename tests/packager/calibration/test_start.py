"""The text of a calibration: how it is read, and that a build depends on that."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bundles import SMALL
from checkpoints import TINY_QWEN3, random_checkpoint
from qpack_packager.build import build
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.declared_encodings import DeclaredEncodings
from qpack_packager.prepare import prepare
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from qpack_packager.weights.add import fingerprint
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import InputError

WORDS = "Größe, naïve, Ærøskøbing. And the LORD said unto Moses, Go in unto Pharaoh, and tell him. " * 4


def declared(*flags: str, legacy: Sequence[str] = ()) -> ModelText:
    return ModelText(TINY_QWEN3, DeclaredEncodings.parse(flags), legacy)


def calibrated_by(path: Path, data: bytes) -> Options:
    path.write_bytes(data)
    return replace(SMALL, method="gptq", calibration=path)


def test_a_declared_text_calibrates_as_the_same_text_in_utf8(tmp_path: Path):
    model = random_checkpoint(tmp_path / "model", "qwen3", num_hidden_layers=1, vocab_size=512)

    def built(name: str, text: ModelText, data: bytes) -> Bundle:
        options = calibrated_by(tmp_path / "old text.json", data)
        return build(ModelText(model, text.declared), tmp_path / name, options, Progress("plain"))

    old = WORDS.encode("cp1252")
    bundle = built("declared", declared("*.json=cp1252"), old)
    tensors = bundle.manifest["tensors"]  # with their digests
    assert tensors == built("utf-8", declared(), WORDS.encode("utf-8")).manifest["tensors"]
    assert tensors != built("wrong", declared("*.json=cp1253"), old).manifest["tensors"]
    assert bundle.manifest["quant"]["calibration_sha256"] == hashlib.sha256(old).hexdigest()


def test_only_a_build_with_the_same_declarations_goes_on_in_what_another_left(tmp_path: Path):
    def mark(text: ModelText, options: Options) -> str:
        return fingerprint(prepare(text, options), options)([])

    gptq = calibrated_by(tmp_path / "text", WORDS.encode("cp1252"))
    texts = [declared("text=cp1252"), declared("text=cp1254"), declared("text=cp1252", legacy=["gb18030"])]
    marks = [mark(text, gptq) for text in texts]
    assert len(set(marks)) == len(marks)
    assert mark(declared("text=cp1252"), gptq) == marks[0]
    assert mark(declared("text=cp1252"), SMALL) == mark(declared(), SMALL)  # it has no text


@pytest.mark.parametrize(("data", "says"), [(None, "is no file"), ("größer".encode("cp1252"), "QE003")])
def test_a_text_that_can_not_be_read_ends_a_build_before_it_begins(data: bytes | None, says: str, tmp_path: Path):
    options = calibrated_by(tmp_path / "text", data or b"")
    if data is None:
        (tmp_path / "text").unlink()
    with pytest.raises(InputError, match=says):
        build(declared(), tmp_path / "out" / "bundle", options, Progress("plain"))
    assert not (tmp_path / "out").exists()
