"""Requests as the server works with them, parsed from the bodies that openapi.json describes."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from qpack_runtime.sampling_options import SamplingOptions
from qpack_runtime.serve.http.api_error import ApiError
from qpack_runtime.serve.http.json_body import read_json
from qpack_runtime.serve.http.validation import Check, compile_schema
from qpack_schemas.strict_json import JsonValue

MOST_SEQUENCES = 128  # of one request
COMPLETION_TOKENS = 16  # of a completion that doesn't say how many, as OpenAI has it

# One check per request schema of openapi.json.
_CHAT, _COMPLETION = compile_schema("ChatCompletionRequest"), compile_schema("CompletionRequest")
_PROMPT, _MESSAGES = compile_schema("TokenizePromptRequest"), compile_schema("TokenizeMessagesRequest")
_DETOKENIZE = compile_schema("DetokenizeRequest")

_DRAWN_BITS = 53  # of a seed, so that a client whose numbers are float64 can send it again
_WITH_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class Decoding:
    """What both endpoints that decode are asked for."""

    options: SamplingOptions
    n: int  # sequences per prompt
    max_tokens: int | None  # per sequence; None: as many as the context holds
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool  # a stream ends with a chunk that has the usage
    top_logprobs: int | None  # how many alternatives beside each token; None: no log-probabilities
    session: str | None
    timeout: float | None  # seconds
    response_format: Mapping[str, Any] | None  # None: any text


@dataclass(frozen=True)
class ChatRequest:
    model: str | None  # as the client names it
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    use_tools: bool  # may the answer hold tool calls
    template_variables: dict[str, Any]
    decoding: Decoding


@dataclass(frozen=True)
class CompletionRequest:
    model: str | None  # as the client names it
    prompts: list[str | list[int]]  # texts, or token ids
    echo: bool
    decoding: Decoding


@dataclass(frozen=True)
class TokenizeRequest:
    """Either a prompt or messages."""

    model: str | None
    prompt: str | None
    add_special_tokens: bool
    messages: list[dict[str, Any]] | None
    add_generation_prompt: bool
    tools: list[dict[str, Any]] | None
    template_variables: dict[str, Any]


@dataclass(frozen=True)
class DetokenizeRequest:
    model: str | None
    tokens: list[int]


def parse_chat(body: bytes, defaults: Mapping[str, float]) -> ChatRequest:
    """The request in a body of POST /v1/chat/completions. `defaults` are the bundle's sampling defaults by the names of
    SamplingOptions. Raises ApiError 400, as all parsers here."""
    fields = _given(read_json(body), _CHAT)
    limits = {name: fields[name] for name in ("max_tokens", "max_completion_tokens") if name in fields}
    if len(set(limits.values())) > 1:
        both = " and ".join(f"{name} is {value}" for name, value in limits.items())
        _refuse("max_tokens", f"{both}; give one of them")
    if "top_logprobs" in fields and not fields.get("logprobs"):
        _refuse("top_logprobs", f"top_logprobs is {fields['top_logprobs']}, but logprobs is not true; set it too")
    tools = fields.get("tools") or None
    return ChatRequest(
        model=fields.get("model"),
        messages=_messages(fields["messages"]),
        tools=tools,
        use_tools=tools is not None and fields.get("tool_choice") != "none",
        template_variables=fields.get("chat_template_kwargs", {}),
        decoding=_decoding(
            fields,
            defaults,
            max_tokens=int(next(iter(limits.values()))) if limits else None,
            top_logprobs=int(fields.get("top_logprobs", 0)) if fields.get("logprobs") else None,
        ),
    )


def parse_completion(body: bytes, defaults: Mapping[str, float]) -> CompletionRequest:
    """The request in a body of POST /v1/completions."""
    fields = _given(read_json(body), _COMPLETION)
    n, echo, prompts = int(fields.get("n", 1)), fields.get("echo", False), _prompts(fields["prompt"])
    if n * len(prompts) > MOST_SEQUENCES:
        found = f"{len(prompts)} prompts with n = {n} make {n * len(prompts)} sequences"
        _refuse("n", f"{found}; one request takes at most {MOST_SEQUENCES}")
    if fields.get("best_of", n) != n:
        _refuse(
            "best_of", f"best_of is {fields['best_of']} and n is {n}, but every answer is returned; leave best_of out"
        )
    if echo and "logprobs" in fields:
        _refuse("logprobs", "logprobs with echo is not supported: log-probabilities of a prompt are not computed")
    max_tokens, logprobs = fields.get("max_tokens", COMPLETION_TOKENS), fields.get("logprobs")
    return CompletionRequest(
        model=fields.get("model"),
        prompts=prompts,
        echo=echo,
        decoding=_decoding(
            fields,
            defaults,
            max_tokens=int(max_tokens),
            top_logprobs=None if logprobs is None else int(logprobs),
        ),
    )


def parse_tokenize(body: bytes) -> TokenizeRequest:
    """The request in a body of POST /tokenize."""
    value = read_json(body)
    of_messages = isinstance(value, dict) and "messages" in value
    fields = _given(value, _MESSAGES if of_messages else _PROMPT)
    return TokenizeRequest(
        model=fields.get("model"),
        prompt=fields.get("prompt"),
        add_special_tokens=fields.get("add_special_tokens", not of_messages),
        messages=_messages(fields["messages"]) if of_messages else None,
        add_generation_prompt=fields.get("add_generation_prompt", True),
        tools=fields.get("tools") or None,
        template_variables=fields.get("chat_template_kwargs", {}),
    )


def parse_detokenize(body: bytes) -> DetokenizeRequest:
    """The request in a body of POST /detokenize."""
    fields = _given(read_json(body), _DETOKENIZE)
    return DetokenizeRequest(fields.get("model"), list(map(int, fields["tokens"])))


def _refuse(param: str, message: str) -> NoReturn:
    raise ApiError(400, message, param=param)


def _given(value: JsonValue, check: Check) -> dict[str, Any]:
    """The fields of a checked request that say something: null is as if a field weren't there."""
    check(value)
    return {name: field for name, field in value.items() if field is not None}


def _messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without the fields that are null, but for `content`, which templates expect."""
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and message.get("content") is None and not message.get("tool_calls"):
            place = f"messages[{index}].content"
            _refuse(place, f"{place} is missing; a message of the assistant has content, tool_calls or both")
    return [
        {name: field for name, field in message.items() if field is not None or name == "content"}
        for message in messages
    ]


def _prompts(prompt: Any) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], str):
        return prompt
    return [list(map(int, ids)) for ids in (prompt if isinstance(prompt[0], list) else [prompt])]


def _decoding(
    fields: Mapping[str, Any], defaults: Mapping[str, float], *, max_tokens: int | None, top_logprobs: int | None
) -> Decoding:
    stop, stream = fields.get("stop", ()), fields.get("stream", False)
    if "stream_options" in fields and not stream:
        _refuse("stream_options", "stream_options is given, but stream is not true; set it too")
    response_format = fields.get("response_format", {"type": "text"})
    return Decoding(
        options=_options(fields, defaults, logprobs=top_logprobs is not None),
        n=int(fields.get("n", 1)),
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stream=stream,
        include_usage=bool(fields.get("stream_options", {}).get("include_usage")),
        top_logprobs=top_logprobs,
        session=fields.get("session"),
        timeout=fields.get("timeout"),
        response_format=None if response_format["type"] == "text" else response_format,
    )


def _options(fields: Mapping[str, Any], defaults: Mapping[str, float], *, logprobs: bool) -> SamplingOptions:
    chosen: dict[str, Any] = {"temperature": 1.0, **defaults}
    chosen |= {name: fields[name] for name in _WITH_DEFAULTS if name in fields}
    chosen["top_k"] = max(0, int(chosen.get("top_k", 0)))  # -1 is vLLM's way to say off
    return SamplingOptions(
        **chosen,
        presence_penalty=fields.get("presence_penalty", 0.0),
        frequency_penalty=fields.get("frequency_penalty", 0.0),
        seed=int(fields["seed"]) % 2**64 if "seed" in fields else secrets.randbits(_DRAWN_BITS),
        logit_bias={int(token): bias for token, bias in fields.get("logit_bias", {}).items()},
        logprobs=logprobs,
    )
