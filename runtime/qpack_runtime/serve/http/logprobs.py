"""Log-probabilities in the two shapes that OpenAI has for them."""

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer

from qpack_runtime.detokenizer import Detokenizer, TokenBytes
from qpack_runtime.serve.engine.job import Scored


class Spelling:
    """How tokens are written where they stand by themselves."""

    def __init__(self, token_bytes: TokenBytes, tokenizer: Tokenizer):
        self.token_bytes, self._tokenizer = token_bytes, tokenizer

    def text(self, token: int) -> str:
        """A special token by its name, `<|im_end|>`; one that is no text by itself as OpenAI writes it,
        `bytes:\\xe4\\xb8`."""
        if not (raw := self.token_bytes[token]):
            return self._tokenizer.id_to_token(token) or ""
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def bytes(self, token: int) -> list[int] | None:
        """None for a special token, which adds nothing to a text."""
        return list(self.token_bytes[token]) or None


class TextOffsets:
    """Where in a text each of its tokens begins, in characters, of which `before` stand before the first token. A token
    that goes on with a character begins where the character does."""

    def __init__(self, token_bytes: TokenBytes, before: int):
        self._detokenizer, self._next = Detokenizer(token_bytes), before

    def of(self, token: int) -> int:
        """Of the next token of the text."""
        offset = self._next
        self._next += len(self._detokenizer.push(token))
        return offset


def chat_logprobs(scored: Iterable[Scored], alternatives: int, spelling: Spelling) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": spelling.text(token), "logprob": logprob, "bytes": spelling.bytes(token)}

    content = [
        entry(one.token, one.logprob) | {"top_logprobs": [entry(*pair) for pair in one.top[:alternatives]]}
        for one in scored
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    scored: Iterable[Scored], alternatives: int, spelling: Spelling, offsets: TextOffsets
) -> dict[str, Any]:
    shape: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for one in scored:
        shape["tokens"].append(spelling.text(one.token))
        shape["token_logprobs"].append(one.logprob)
        shape["top_logprobs"].append({spelling.text(token): lp for token, lp in one.top[:alternatives]})
        shape["text_offset"].append(offsets.of(one.token))
    return shape
