"""Windows are the text's tokens, as the tokenizers library counts them, each once and in order."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from bundles import ASSETS
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.declared_encodings import DeclaredEncodings
from qpack_packager.evaluate.windows import MOST_BYTES, Corpus, cut, read_windows
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.errors import InputError

TEXT = ASSETS / "tiny-qwen3" / "eval.txt"
VERSES = "In the beginning God created the heaven and the earth.\n" * 3


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Callable[[str], Path]) -> Bundle:
    """Its context is 128."""
    return open_bundle(tiny_bundle("tiny-qwen3"))


def ids_of(text: str) -> list[int]:
    return Tokenizer.from_file(str(ASSETS / "tiny-qwen3" / "tokenizer.json")).encode(text).ids


def test_windows_are_consecutive_whole_and_as_long_as_the_context(bundle: Bundle):
    windows, ids = read_windows(bundle, Corpus(TEXT)).ids, ids_of(TEXT.read_text(encoding="utf-8"))
    assert windows.dtype == np.int32
    assert windows.shape == (len(ids) // 128, 128)
    assert windows.ravel().tolist() == ids[: windows.size]
    assert len(ids) - windows.size < 128


def test_a_limit_keeps_the_first_windows(bundle: Bundle):
    whole = read_windows(bundle, Corpus(TEXT)).ids
    assert np.array_equal(read_windows(bundle, Corpus(TEXT), 3).ids, whole[:3])
    assert np.array_equal(read_windows(bundle, Corpus(TEXT), 10**6).ids, whole)


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
    assert read_windows(bundle, Corpus(tmp_path / "text.txt")).ids.tolist() == [ids[:128]]


@pytest.mark.parametrize("text", ["", "a"])
def test_less_than_two_tokens_are_refused(bundle: Bundle, tmp_path: Path, text: str):
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"{len(text)} tokens"):
        read_windows(bundle, Corpus(tmp_path / "text.txt"))


def test_a_text_is_decoded_as_every_text_and_named_by_the_digest_of_its_bytes(bundle: Bundle, tmp_path: Path):
    data = VERSES.replace("\n", "\r\n").encode("utf-16")
    (tmp_path / "text.txt").write_bytes(data)
    windows = read_windows(bundle, Corpus(tmp_path / "text.txt"))
    assert windows.ids.tolist() == [ids_of(VERSES)]
    assert windows.text_sha256 == hashlib.sha256(data).hexdigest()


def test_bytes_that_leave_the_encoding_open_are_refused(bundle: Bundle, tmp_path: Path):
    (tmp_path / "text.txt").write_bytes(b"\xff\xfe\xfd" * 50 + b"a")
    with pytest.raises(InputError, match=r"text\.txt"):
        read_windows(bundle, Corpus(tmp_path / "text.txt"))


@pytest.mark.parametrize(
    "name",
    ["a.py", "a.bin", "config.json", "tokenizer.json", "a.yaml", "a.jinja", "merges.txt", "LICENSE", "README.md"],
)
def test_a_name_says_nothing_of_a_text(bundle: Bundle, tmp_path: Path, name: str):
    """Prose parses as nothing; a fault of each kind stands in front."""
    text = '{{ ( "a": 1, // \n[\n' + VERSES
    path = tmp_path / name
    path.write_bytes(text.replace("\n", "\r\n").encode("utf-8"))
    assert read_windows(bundle, Corpus(path)).ids.tolist() == [ids_of(text)]
    path.write_bytes("größer".encode("cp1252"))
    with pytest.raises(InputError, match=r"--encoding GLOB=NAME .*QE003"):
        read_windows(bundle, Corpus(path))


@pytest.mark.parametrize(
    ("declared", "legacy", "codec", "word"),
    [
        ("*.txt=cp1252", (), "cp1252", "größer "),
        ("held-out.*=cp949", (), "cp949", "목표 "),
        ("", ("gb18030",), "gbk", "目标 "),
    ],
)
def test_what_the_bytes_leave_open_is_what_was_declared(
    bundle: Bundle, tmp_path: Path, declared: str, legacy: tuple[str, ...], codec: str, word: str
):
    path = tmp_path / "held-out.txt"
    path.write_bytes((word * 2).encode(codec))
    with pytest.raises(InputError, match=r"held-out\.txt"):
        read_windows(bundle, Corpus(path))
    flags = DeclaredEncodings.parse([declared] if declared else [])
    assert read_windows(bundle, Corpus(path, flags, legacy)).ids.tolist() == [ids_of(word * 2)]


def test_a_pipe_is_read_once_which_is_not_enough_for_a_build(bundle: Bundle):
    reader, writer = os.pipe()
    os.write(writer, VERSES.encode("ascii"))
    os.close(writer)
    path = Path(f"/dev/fd/{reader}")
    with pytest.raises(InputError, match="a build reads it more than once"):
        Corpus.of_build(path, ModelText(ASSETS / "tiny-qwen3"))
    windows = read_windows(bundle, Corpus(path))
    os.close(reader)
    assert windows.ids.tolist() == [ids_of(VERSES)]
    assert windows.text_sha256 == hashlib.sha256(VERSES.encode("ascii")).hexdigest()


@pytest.mark.parametrize("name", ["absent", "."])
def test_what_is_no_file_is_told_with_a_remedy(tmp_path: Path, name: str):
    for read in (Corpus(tmp_path / name).read, lambda: Corpus.of_build(tmp_path / name, ModelText(tmp_path))):
        with pytest.raises(InputError, match="is no file\n  remedy: name a text file"):
            read()


def test_a_text_that_is_too_large_is_told_how_much_is_enough(tmp_path: Path):
    with (tmp_path / "text").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(InputError, match=r"more than 16,777,216 bytes\n  remedy: give its beginning"):
        Corpus(tmp_path / "text").read()


def test_windows_of_one_token_are_refused():
    with pytest.raises(InputError, match="a context of 1 predicts nothing"):
        cut(Corpus(TEXT), ASSETS / "tiny-qwen3" / "tokenizer.json", 1)
