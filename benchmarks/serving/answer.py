"""What a server answered, read from the pieces in which it came: text, tokens, and when each bit of text was there."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import h11

from .exchange import Pieces, open_exchange

NO_ANSWER, CUT_OFF, FAILED_LATER = "no answer", "cut off", "error in the stream"  # beside HTTP's codes


@dataclass
class Answer:
    """Times are seconds from the beginning of the load. `failure` is empty, an HTTP status as text, or one of those
    above; the answer is then no part of any latency."""

    due: float  # when it was to be sent, so that a request which the client sends late is not a fast one
    end: float = 0.0  # of its last event
    text: str = ""
    tokens: int = 0  # as the server counts them
    times: list[float] = field(default_factory=list)  # of each event with text
    failure: str = NO_ANSWER
    message: str = ""  # the server's, of a failure


def read_answer(due: float, pieces: Pieces, begin: float) -> Answer:
    """`begin`: time.perf_counter() seconds of the beginning of the load."""
    answer = Answer(due)
    try:
        for time, event in _events(answer, pieces):
            _take(answer, time - begin, event)
    except (h11.RemoteProtocolError, ValueError) as error:
        answer.message = str(error)  # `failure` says how far it had come
    return answer


def _events(answer: Answer, pieces: Pieces) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, with the time at which its line was whole."""
    connection, _ = open_exchange("", 0, 0)
    connection.send(h11.EndOfMessage())
    rest = b""
    for time, piece in [*pieces, (0.0, b"")]:  # the empty one: the connection is closed
        connection.receive_data(piece)
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Response):
                answer.failure = CUT_OFF if event.status_code == 200 else str(event.status_code)
            elif isinstance(event, h11.Data):
                *lines, rest = (rest + bytes(event.data)).split(b"\n")
                yield from ((time, line[5:].strip()) for line in lines if line.startswith(b"data:"))
            elif isinstance(event, h11.EndOfMessage):
                if answer.failure.isdecimal():
                    answer.message = rest.decode(errors="replace")
                return
            elif isinstance(event, h11.ConnectionClosed):
                return


def _take(answer: Answer, time: float, event: bytes) -> None:
    if event == b"[DONE]":
        answer.end = time
        answer.failure = "" if answer.failure == CUT_OFF else answer.failure
        return
    value: dict[str, Any] = json.loads(event)
    if "error" in value:
        answer.failure, answer.message = FAILED_LATER, json.dumps(value["error"])
        return
    if usage := value.get("usage"):
        answer.tokens = usage["completion_tokens"]
    for choice in value.get("choices", ()):
        if choice.get("text"):
            answer.times.append(time)
            answer.text += choice["text"]
