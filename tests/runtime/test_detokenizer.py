"""Streaming never shows half a character, never invents one and never loses one. The oracle is the tokenizer's own
decoder."""

import codecs
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from bundles import ASSETS
from qpack_runtime.detokenizer import Detokenizer, TokenBytes, byte_alphabet

TOKENIZER = Tokenizer.from_file(str(ASSETS / "tiny-qwen3" / "tokenizer.json"))
TOKEN_BYTES = TokenBytes(TOKENIZER)
IDS = st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=40)


def stream(ids: list[int], token_bytes: TokenBytes = TOKEN_BYTES) -> list[str]:
    detokenizer = Detokenizer(token_bytes)
    return [detokenizer.push(token) for token in ids]


def test_the_byte_alphabet_is_that_of_gpt_2():
    assert byte_alphabet() == {character: byte for byte, character in bytes_to_unicode().items()}


@given(st.text(max_size=60))
def test_any_text_comes_back_whole(text: str):
    ids = TOKENIZER.encode(text).ids
    assert "".join(stream(ids)) == TOKENIZER.decode(ids, skip_special_tokens=True)


@given(st.text(st.characters(codec="utf-8", min_codepoint=0x80), min_size=1, max_size=20))
def test_a_character_split_over_tokens_appears_with_its_last_token(text: str):
    """exo#1691, dynamo#12630. The tiny vocabulary has no token for most characters, so they come byte by byte."""
    text = TOKENIZER.normalizer.normalize_str(text)
    pieces, shown = stream(TOKENIZER.encode(text, add_special_tokens=False).ids), ""
    for piece in pieces:
        shown += piece
        assert text.startswith(shown)
        assert "\ufffd" not in piece or "\ufffd" in text
    assert shown == text


@given(IDS)
def test_any_tokens_give_what_the_tokenizer_decodes_but_for_an_unfinished_last_character(ids: list[int]):
    whole = TOKENIZER.decode(ids, skip_special_tokens=True)
    shown = "".join(stream(ids))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(b"".join(TOKEN_BYTES[token] for token in ids))
    unfinished = decoder.decode(b"", final=True)
    assert shown + unfinished == whole


def test_special_tokens_have_no_text_and_other_added_tokens_have_theirs(tmp_path: Path):
    tokenizer = Tokenizer.from_file(str(ASSETS / "tiny-qwen3" / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    ids = [510, 512]  # <|im_start|> and the one just added
    assert stream(ids, TokenBytes(tokenizer)) == ["", "<think>"]
    assert tokenizer.decode(ids) == "<think>"


@pytest.mark.parametrize("token", [510, 511, 10**6])
def test_ids_without_text_show_nothing(token: int):
    assert stream([token]) == [""]
