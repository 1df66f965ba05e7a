"""Text -> token ids beside the event loop, and whether they leave room for an answer."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial

from tokenizers import Tokenizer

from qpack_runtime.detokenizer import TokenBytes
from qpack_schemas.errors import FitError, UsageError


class PromptTokens:
    """`context` is the positions of a slot; `thread` is where the tokenizer works."""

    def __init__(self, tokenizer: Tokenizer, token_bytes: TokenBytes, context: int, vocab: int, thread: Executor):
        self._tokenizer, self._context, self._vocab, self._thread = tokenizer, context, vocab, thread
        self._longest = token_bytes.longest

    async def prompt(self, text: str, *, special: bool) -> list[int]:
        """The ids of a prompt. `special`: with what the tokenizer puts around a text. Raises FitError if no room is
        left for an answer; a text that can't fit is refused before it is tokenized."""
        least = -(-len(text.encode("utf-8")) // self._longest)
        if least >= self._context:
            raise self._too_long(f"at least {least}")
        ids = await self.encode(text, special=special)
        self.require_room(ids)
        return ids

    async def encode(self, text: str, *, special: bool) -> list[int]:
        encode = partial(self._tokenizer.encode, text, add_special_tokens=special)
        encoding = await asyncio.get_running_loop().run_in_executor(self._thread, encode)
        return encoding.ids

    def require_room(self, ids: Sequence[int]) -> None:
        """Raises UsageError for no token, or one that the vocabulary doesn't have, FitError if no answer would fit."""
        if not ids:
            raise UsageError("the prompt has no tokens", where="prompt", remedy="send at least one character")
        if len(ids) >= self._context:
            raise self._too_long(str(len(ids)))
        self.require_known(ids)

    def require_known(self, ids: Sequence[int], *, where: str = "") -> None:
        """Raises UsageError for an id that the vocabulary doesn't have; `where` names the field that holds it."""
        if ids and (max(ids) >= self._vocab or min(ids) < 0):
            wrong = next(token for token in ids if not 0 <= token < self._vocab)
            raise UsageError(
                f"token id {wrong} is not in the vocabulary", where=where, remedy=f"ids go from 0 to {self._vocab - 1}"
            )

    def _too_long(self, tokens: str) -> FitError:
        return FitError(
            f"the prompt has {tokens} tokens and the context {self._context}, which must hold the answer too",
            remedy="send a shorter prompt",
        )
