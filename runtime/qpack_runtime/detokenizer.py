"""Tokens -> text while they arrive: whole characters only, and nothing lost.

A byte-level token is a piece of UTF-8, so one character may be split over several tokens. The bytes of a token are read
from the vocabulary by the byte-level alphabet of GPT-2, then decoded incrementally.
"""

import codecs
import json
from array import array
from itertools import accumulate

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
        spelled: dict[int, bytes] = {}
        for text, token in tokenizer.get_vocab(with_added_tokens=True).items():
            if token in added:
                spelled[token] = b"" if added[token]["special"] else text.encode("utf-8")
            else:
                spelled[token] = bytes(alphabet[character] for character in text)
        # One string and its cuts: a real vocabulary as a dictionary of its own would take ten times the memory.
        ordered = [spelled.get(token, b"") for token in range(max(spelled) + 1)]
        self._bytes = b"".join(ordered)
        self._cuts = array("I", accumulate(map(len, ordered), initial=0))
        self.longest = max(map(len, ordered))  # bytes

    def __getitem__(self, token: int) -> bytes:
        """Ids that the tokenizer skips have no text."""
        if not 0 <= token < len(self._cuts) - 1:
            return b""
        return self._bytes[self._cuts[token] : self._cuts[token + 1]]


class Detokenizer:
    """The text of one sequence. What the tokenizer's own decoder shows as U+FFFD, bytes that are no character, is left
    out, and so is a U+FFFD that the model spells: it says no more than that something was lost."""

    def __init__(self, token_bytes: TokenBytes):
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def push(self, token: int) -> str:
        """The characters that `token` completes. Bytes of an unfinished one wait for the tokens that follow; if none
        does, they are no character and are never shown."""
        return self._decoder.decode(self._token_bytes[token]).replace("\ufffd", "")
