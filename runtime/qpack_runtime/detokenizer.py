"""Tokens -> text while they arrive: whole characters only, and nothing lost.

A byte-level token is a piece of UTF-8, so one character may be split over several tokens. The bytes of a token are read
from the vocabulary by the byte-level alphabet of GPT-2, then decoded incrementally.
"""

import codecs
from array import array

from tokenizers import Tokenizer


def byte_alphabet() -> dict[str, int]:
    """Character of a byte-level vocabulary -> byte: printable Latin-1 is itself, the others are U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class TokenBytes:
    """The bytes of every token of a byte-level tokenizer; special tokens have none. `size`: ids are below it.

    One string and its cuts, made id by id: a real vocabulary as Python objects would take ten times the memory."""

    def __init__(self, tokenizer: Tokenizer, size: int):
        alphabet, added = byte_alphabet(), tokenizer.get_added_tokens_decoder()
        joined, self._cuts = bytearray(), array("I", [0])
        for token in range(size):
            if token not in added:
                joined += bytes(map(alphabet.__getitem__, tokenizer.id_to_token(token) or ""))
            elif not added[token].special:
                joined += added[token].content.encode("utf-8")
            self._cuts.append(len(joined))
        self._bytes = bytes(joined)
        self.longest = max(map(len, map(self.__getitem__, range(size))))  # bytes

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
