"""What the answers to the two endpoints that decode share: their sequences' events, whole or as a stream."""

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from qpack_runtime.serve.engine.job import Event, Failed, Finished, Piece, Scored, Started
from qpack_runtime.serve.http.api_error import ApiError, as_api_error
from qpack_runtime.serve.http.body import dump
from qpack_runtime.serve.service import Events
from qpack_runtime.serve.text.tool_calls import ToolCall, ToolCallParser
from qpack_schemas.errors import QpackError

_DONE = b"data: [DONE]\n\n"  # how OpenAI ends a stream


@dataclass
class Part:
    """One sequence of an answer, as far as it has come."""

    index: int
    prompt_tokens: int
    prefix: str = ""  # the prompt, if it is to be echoed
    tool_parser: ToolCallParser | None = None
    cached: int = 0
    started: float | None = None  # time.perf_counter() seconds, when it got a slot
    first: float | None = None  # likewise, when its first text came
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)
    output_tokens: int = 0
    finish_reason: str | None = None
    failure: QpackError | None = None  # that ended it, of which the client learns no more than that there was one


@dataclass(frozen=True)
class Delta:
    """What an event added to a part."""

    part: Part
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    scored: tuple[Scored, ...] = ()
    finish_reason: str | None = None


class Shape(Protocol):
    """How an endpoint spells its answers."""

    def opening(self, part: Part) -> dict[str, Any] | None: ...  # the first chunk of a sequence in a stream
    def chunk(self, delta: Delta) -> dict[str, Any]: ...
    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]: ...
    def whole(self, parts: Sequence[Part], usage: dict[str, Any]) -> dict[str, Any]: ...


def usage_of(parts: Sequence[Part], n: int) -> dict[str, Any]:
    """Tokens of prompts, each counted once for its `n` sequences, and of all answers."""
    prompt = sum(part.prompt_tokens for part in parts[::n])
    answers = sum(part.output_tokens for part in parts)
    cached = sum(part.cached for part in parts[::n])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answers,
        "total_tokens": prompt + answers,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def advance(part: Part, event: Event) -> Iterable[Delta]:
    """Takes an event into a part and says what it added. Raises ApiError if the sequence has failed."""
    if isinstance(event, Started):
        part.cached, part.started = event.cached, time.perf_counter()
    elif isinstance(event, Piece):
        part.first = part.first or time.perf_counter()
        part.scored += event.scored
        shown = part.tool_parser.push(event.text) if part.tool_parser else [event.text]
        yield _extend(part, shown, event.scored)
    elif isinstance(event, Finished):
        if part.tool_parser and (left := part.tool_parser.finish()):
            yield _extend(part, left, ())
        part.output_tokens = len(event.output)
        part.finish_reason = "tool_calls" if part.calls and event.reason == "stop" else event.reason
        yield Delta(part, finish_reason=part.finish_reason)
    else:
        error = failure(event)
        part.failure = event.error if error.status == 500 else None
        raise error


def failure(event: Failed) -> ApiError:
    if event.reason == "timeout":
        message = f"{event.error.message}; {event.error.remedy}"
        return ApiError(503, message, code="timeout", headers={"x-should-retry": "false"})  # OpenAI's clients heed it
    if event.reason is not None:
        return ApiError(503, event.error.message, code=event.reason)
    return as_api_error(event.error)


async def complete(events: Events, parts: Sequence[Part]) -> None:
    """Reads until all parts have ended."""
    while batch := await events.batch():
        for index, event in batch:
            for _ in advance(parts[index], event):
                pass


async def stream(
    events: Events, parts: Sequence[Part], shape: Shape, n: int, *, include_usage: bool
) -> AsyncIterator[bytes]:
    """Server-sent events, all that have come in one piece. Raises ApiError before the first piece; a failure behind it
    is an event of its own."""
    begun = False
    while batch := await events.batch():
        pieces: list[bytes] = []
        try:
            for index, event in batch:
                part = parts[index]
                if isinstance(event, Started) and (opening := shape.opening(part)):
                    pieces.append(_sent(opening))
                pieces += [_sent(shape.chunk(delta)) for delta in advance(part, event) if _says_something(delta)]
        except ApiError as error:
            if not begun:
                raise
            yield b"".join([*pieces, _sent(error.body())])
            return
        if pieces:
            begun = True
            yield b"".join(pieces)
    closing = [_sent(shape.usage_chunk(usage_of(parts, n)))] if include_usage else []
    yield b"".join([*closing, _DONE])


def unasked_stream(parts: Sequence[Part], shape: Shape, usage: dict[str, Any] | None) -> bytes:
    """The server-sent events of parts that have ended without a token."""
    chunks = [shape.opening(part) for part in parts]
    chunks += [shape.chunk(Delta(part, finish_reason=part.finish_reason)) for part in parts]
    chunks += [shape.usage_chunk(usage)] if usage else []
    return b"".join([*(_sent(chunk) for chunk in chunks if chunk), _DONE])


def _extend(part: Part, shown: Iterable[str | ToolCall], scored: tuple[Scored, ...]) -> Delta:
    shown = list(shown)
    text = "".join(piece for piece in shown if isinstance(piece, str))
    calls = tuple(piece for piece in shown if isinstance(piece, ToolCall))
    part.text += text
    part.calls += calls
    return Delta(part, text, calls, scored)


def _says_something(delta: Delta) -> bool:
    return bool(delta.text or delta.calls or delta.scored or delta.finish_reason)


def _sent(value: dict[str, Any]) -> bytes:
    return b"data: " + dump(value) + b"\n\n"
