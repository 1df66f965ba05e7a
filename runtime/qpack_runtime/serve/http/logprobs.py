"""Log-probabilities in the two shapes that OpenAI has for them."""

from collections.abc import Iterable
from typing import Any

from qpack_runtime.detokenizer import TokenBytes
from qpack_runtime.serve.engine.job import Scored


def spelled(token: int, token_bytes: TokenBytes) -> str:
    """A token as text; one that is no text by itself as OpenAI writes it, `bytes:\\xe4\\xb8`."""
    raw = token_bytes[token]
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(scored: Iterable[Scored], alternatives: int, token_bytes: TokenBytes) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": spelled(token, token_bytes), "logprob": logprob, "bytes": list(token_bytes[token])}

    content = [
        entry(one.token, one.logprob) | {"top_logprobs": [entry(*pair) for pair in one.top[:alternatives]]}
        for one in scored
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    scored: Iterable[Scored], alternatives: int, token_bytes: TokenBytes, offset: int
) -> dict[str, Any]:
    """`offset`: characters of the text before the first token."""
    shape: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for one in scored:
        text = spelled(one.token, token_bytes)
        shape["tokens"].append(text)
        shape["token_logprobs"].append(one.logprob)
        shape["top_logprobs"].append({spelled(token, token_bytes): lp for token, lp in one.top[:alternatives]})
        shape["text_offset"].append(offset)
        offset += len(text)
    return shape
