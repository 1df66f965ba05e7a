"""Texts made under a grammar by choosing among what its masks allow, without a model."""

import random

import numpy as np
from tokenizers import Tokenizer

from bundles import ASSETS
from qpack_runtime.detokenizer import TokenBytes
from qpack_runtime.serve.text.grammar import Grammar, Grammars

TINY = Tokenizer.from_file(str(ASSETS / "tiny-qwen3_5" / "tokenizer.json"))
TINY_BYTES = TokenBytes(TINY, TINY.get_vocab_size())
IDS = TINY.get_vocab()
VOCAB = len(IDS)
EOS = [IDS["<|im_end|>"], IDS["<|endoftext|>"]]
WORDS = VOCAB // 32 + 3  # a row of the sampling tables, padded as for a tile
GRAMMARS = Grammars(TINY, VOCAB, EOS)
CLOSING = [IDS[character] for character in '"}]:']  # the first that is allowed ends a text soon


def json_schema(schema: object) -> dict[str, object]:
    """OpenAI's response_format for a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def allowed(grammar: Grammar, words: int = WORDS) -> np.ndarray:
    """The ids a mask of int32 [words] allows, ascending, from a row full of another request's bits."""
    bits = np.full(words, -1, np.int32)
    grammar.mask(bits)
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))


def random_text(grammar: Grammar, rng: random.Random, free: int) -> bytes:
    """Chooses any allowed token `free` times, then where it can what ends the text; the bytes until an end token."""
    text = b""
    while True:
        ids = allowed(grammar).tolist()
        ending = [token for token in EOS + CLOSING if token in ids] if free <= 0 else []
        token = ending[0] if ending else rng.choice(ids)
        grammar.accept(token)
        if token in EOS:
            return text
        text += TINY_BYTES[token]
        free -= 1
