"""Structured output: what a sequence may say next, as the bits that `sample` reads, so that its text fits a schema.

llguidance does the parsing. What it keeps of a vocabulary, a trie of all tokens, takes up to a second and 30 to 50 MB
for those of Qwen; so it is made by the first request that asks for structured output.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import Tokenizer

from qpack_runtime.detokenizer import byte_alphabet
from qpack_runtime.serve.text.json_schema import LIMITS, refusal, schema_grammar
from qpack_schemas.errors import UsageError

# Tokens of plain characters are answered as one set wherever a string may go on for 30 more. The library's own choice,
# four such sets, doubles the memory and is no faster on Qwen's vocabularies.
SLICES = [r'[^"\\\x00-\x1F\x7F]{1,30}']


class Grammars:
    """Compiles response formats for one vocabulary. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, eos_ids: Sequence[int]):
        """`vocab` is the real vocabulary's size: no id from there on is ever allowed. All of `eos_ids` end a text."""
        self._vocabulary, self._eos_ids = _Vocabulary(tokenizer, vocab, eos_ids), list(eos_ids)
        self._trie: LLTokenizer | None = None
        self._lock = threading.Lock()

    def compile(self, response_format: Mapping[str, Any]) -> Grammar:
        """The grammar of OpenAI's `json_object` or `json_schema`. Takes milliseconds, for the largest schemas some
        tenths of a second, mostly without the interpreter's lock.

        Raises UsageError if the schema is invalid, too large or not supported; `where` points into it."""
        if not self._eos_ids:
            raise UsageError("the model has no end token, so structured output could not end")
        schema = _schema(response_format)
        text = schema_grammar(schema)
        matcher = LLMatcher(self._made_trie(), text, log_level=0, limits=LIMITS)
        # The first mask shows what no check of the schema does: that it only refers to itself.
        fill_next_token_bitmask(matcher, allocate_token_bitmask(1, self._vocabulary.size))
        if matcher.is_error():
            raise refusal(schema, matcher.get_error())
        return Grammar(matcher, self._vocabulary.size)

    def _made_trie(self) -> LLTokenizer:
        with self._lock:
            if self._trie is None:
                self._trie = LLTokenizer(self._vocabulary, eos_token=self._eos_ids, slices=SLICES)  # type: ignore[arg-type]
            return self._trie


class Grammar:
    """What one sequence has said, and so what it may say next."""

    def __init__(self, matcher: LLMatcher, vocab: int):
        self._matcher = matcher
        self._words = -(-vocab // 32)

    def mask(self, bits: np.ndarray) -> None:
        """Writes int32 [V / 32], contiguous, V at least `vocab`: bit id % 32 of word id // 32 is set if the id may come
        next. End tokens may where the text may end, and nothing else may where it must.

        Raises UsageError, for this sequence only, if that takes more than the limits allow; `bits` are then zero."""
        fill_next_token_bitmask(self._matcher, bits[np.newaxis, : self._words])
        bits[self._words :] = 0
        if self._matcher.is_error():
            bits[:] = 0
            raise self._failure("what may come next is not known")

    def accept(self, token: int) -> None:
        """Takes a token that was chosen. Raises UsageError if it was not allowed, and the grammar is spent."""
        if not self._matcher.consume_token(token):
            raise self._failure(f"token {token} was not taken")

    def copy(self) -> Grammar:
        """Another sequence that has said the same."""
        copied = Grammar.__new__(Grammar)
        copied._matcher, copied._words = self._matcher.deep_copy(), self._words
        return copied

    def _failure(self, what: str) -> UsageError:
        reason = self._matcher.get_error().partition("\n")[0]
        return UsageError(
            f"structured output ended early, {what}: {reason}",
            where="response_format",
            remedy="simplify the schema: shorter strings, patterns that count less",
        )


def _schema(response_format: Mapping[str, Any]) -> dict[str, Any]:
    kind = response_format.get("type")
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise UsageError(f"response_format.type is {kind!r}", remedy="use json_object or json_schema")
    named = response_format.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        raise UsageError("response_format.json_schema.schema is not an object", remedy="give the JSON Schema there")
    return schema


class _Vocabulary:
    """A vocabulary as llguidance reads one, without a copy of it: bytes by id, asked for once, and text -> ids.

    Added tokens, such as <|im_start|>, are no text."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, tokenizer: Tokenizer, size: int, eos_ids: Sequence[int]):
        self._tokenizer, self.size = tokenizer, size
        self.eos_token_id = eos_ids[0] if eos_ids else None

    @property
    def tokens(self) -> list[bytes]:
        alphabet, added = byte_alphabet(), self._tokenizer.get_added_tokens_decoder()
        texts = ("" if token in added else self._tokenizer.id_to_token(token) or "" for token in range(self.size))
        return [bytes(map(alphabet.__getitem__, text)) for text in texts]

    def __call__(self, text: str) -> list[int]:
        """How the model writes `text`, where a grammar leaves no choice. Neither normalized nor read for added tokens,
        since the ids must have exactly these bytes."""
        cut = self._tokenizer.pre_tokenizer
        pieces = [piece for piece, _ in cut.pre_tokenize_str(text)] if cut else [text]
        return [token.id for piece in pieces for token in self._tokenizer.model.tokenize(piece)]
