"""Tokens -> text while they arrive: whole characters only, and nothing lost.

A byte-level token is a piece of UTF-8, so one character may be split over several tokens. The bytes of a token are read
from the vocabulary by the byte-level alphabet of GPT-2, then decoded incrementally.
"""

import codecs
import json

from tokenizers import Tokenizer


def byte_alphabet() -> dict[str, int]:
    """Character of a byte-level vocabulary -> byte: printable Latin-1 is itself, the others are U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class TokenBytes:
    """The bytes of every token of a byte-level tokenizer; special tokens have none."""

    def __init__(self, tokenizer: Tokenizer):
        alphabet = byte_alphabet()
        added = {token["id"]: token for token in json.loads(tokenizer.to_str())["added_tokens"]}
        self._bytes: dict[int, bytes] = {}
        for text, token in tokenizer.get_vocab(with_added_tokens=True).items():
            if token in added:
                self._bytes[token] = b"" if added[token]["special"] else text.encode("utf-8")
            else:
                self._bytes[token] = bytes(alphabet[character] for character in text)

    def __getitem__(self, token: int) -> bytes:
        """Ids that the tokenizer skips have no text."""
        return self._bytes.get(token, b"")


class Detokenizer:
    """The text of one sequence. Bytes that can't begin a character become U+FFFD, as in the tokenizer's own decoder."""

    def __init__(self, token_bytes: TokenBytes):
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that `token` completes. Bytes of an unfinished one wait for the tokens that follow; if none
        does, they are no character and are never shown."""
        return self._decoder.decode(self._token_bytes[token])
