"""Windows are the text's tokens, as the tokenizers library counts them, each once and in order."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from bundles import ASSETS
from qpack_packager.evaluate.windows import read_windows
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.errors import InputError

TEXT = ASSETS / "tiny-qwen3" / "eval.txt"


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Callable[[str], Path]) -> Bundle:
    """Its context is 128."""
    return open_bundle(tiny_bundle("tiny-qwen3"))


def ids_of(text: str) -> list[int]:
    return Tokenizer.from_file(str(ASSETS / "tiny-qwen3" / "tokenizer.json")).encode(text).ids


def test_windows_are_consecutive_whole_and_as_long_as_the_context(bundle: Bundle):
    windows, ids = read_windows(bundle, TEXT).ids, ids_of(TEXT.read_text(encoding="utf-8"))
    assert windows.dtype == np.int32
    assert windows.shape == (len(ids) // 128, 128)
    assert windows.ravel().tolist() == ids[: windows.size]
    assert len(ids) - windows.size < 128


def test_a_limit_keeps_the_first_windows(bundle: Bundle):
    whole = read_windows(bundle, TEXT).ids
    assert np.array_equal(read_windows(bundle, TEXT, 3).ids, whole[:3])
    assert np.array_equal(read_windows(bundle, TEXT, 10**6).ids, whole)


@pytest.mark.parametrize("count", [2, 127, 128, 129])
def test_a_short_text_is_one_window(bundle: Bundle, tmp_path: Path, count: int):
    text = ""
    words = iter(TEXT.read_text(encoding="utf-8").split())
    while len(ids_of(text)) < count:
        text += next(words) + " "
    while len(ids_of(text)) > count:
        text = text[:-1]
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    ids = ids_of(text)
    assert read_windows(bundle, tmp_path / "text.txt").ids.tolist() == [ids[:128]]


@pytest.mark.parametrize("text", ["", "a"])
def test_less_than_two_tokens_are_refused(bundle: Bundle, tmp_path: Path, text: str):
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"{len(text)} tokens"):
        read_windows(bundle, tmp_path / "text.txt")


def test_a_text_is_decoded_as_every_text_and_named_by_the_digest_of_its_bytes(bundle: Bundle, tmp_path: Path):
    text = "In the beginning God created the heaven and the earth.\n" * 3
    data = text.replace("\n", "\r\n").encode("utf-16")
    (tmp_path / "text.txt").write_bytes(data)
    windows = read_windows(bundle, tmp_path / "text.txt")
    assert windows.ids.tolist() == [ids_of(text)]
    assert windows.text_sha256 == hashlib.sha256(data).hexdigest()


def test_bytes_that_leave_the_encoding_open_are_refused(bundle: Bundle, tmp_path: Path):
    (tmp_path / "text.txt").write_bytes(b"\xff\xfe\xfd" * 50 + b"a")
    with pytest.raises(InputError, match=r"text\.txt"):
        read_windows(bundle, tmp_path / "text.txt")
