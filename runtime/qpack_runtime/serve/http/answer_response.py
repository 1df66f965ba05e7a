"""Sends an answer while it is made: one JSON value at the end, or server-sent events from the first token on."""

import time
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from qpack_runtime.serve.engine.job import Job
from qpack_runtime.serve.http.answer import Part, Shape, complete, stream, unasked_stream, usage_of
from qpack_runtime.serve.http.body import dump, json_response
from qpack_runtime.serve.http.connection import while_connected
from qpack_runtime.serve.http.requests import Decoding
from qpack_runtime.serve.logs import log
from qpack_runtime.serve.service import Service
from qpack_runtime.serve.tracing import Times

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # nginx passes each event on as it comes
]


class Answer(Response):
    """The jobs are handed over when the answer is sent, and cancelled if that ends early. Raises ApiError and
    ClientDisconnect before anything is sent."""

    def __init__(self, service: Service, jobs: Sequence[Job], parts: Sequence[Part], shape: Shape, decoding: Decoding):
        super().__init__()
        self._service, self._jobs, self._parts, self._shape = service, jobs, parts, shape
        self._decoding = decoding
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send_answer = self._send_stream if self._decoding.stream else self._send_whole
        try:
            await while_connected(receive, send_answer(scope, receive, send))
        except ClientDisconnect:
            if not self._begun:
                raise
            scope["state"]["left"] = True  # the status has been sent, so that no handler may answer
        finally:
            for part in self._parts:
                if part.failure is not None:
                    log("request_failed", request_id=scope["state"]["request_id"], reason=str(part.failure))
            usage = scope["state"]["usage"] = usage_of(self._parts, self._decoding.n)
            if self._service.tracing is not None:
                attributes = {"request_id": scope["state"]["request_id"]}
                attributes |= {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}
                times = [
                    Times(job.submitted, part.started, part.first)
                    for job, part in zip(self._jobs, self._parts, strict=True)
                ]
                self._service.tracing.record(scope["path"], Headers(scope=scope), attributes, times)

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._service.answering(self._jobs, self._decoding.timeout) as events:
            await complete(events, self._parts)
        self._count()
        whole = self._shape.whole(self._parts, usage_of(self._parts, self._decoding.n))
        await json_response(whole)(scope, receive, send)

    async def _send_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._service.answering(self._jobs, self._decoding.timeout) as events:
            pieces = stream(
                events, self._parts, self._shape, self._decoding.n, include_usage=self._decoding.include_usage
            )
            async for piece in pieces:
                if not self._begun:
                    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
                    self._begun = True
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        self._count()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _count(self) -> None:
        now = time.perf_counter()
        for job, part in zip(self._jobs, self._parts, strict=True):
            if part.finish_reason in ("stop", "length", "tool_calls"):
                self._service.metrics.finished(part.finish_reason, now - job.submitted)


class Unasked(Response):
    """The answer of no tokens, which no engine need be asked for: the prompt, if it is to be echoed."""

    def __init__(self, parts: Sequence[Part], shape: Shape, decoding: Decoding):
        for part in parts:
            part.finish_reason = "length"
        usage = usage_of(parts, decoding.n)
        if decoding.stream:
            pieces = unasked_stream(parts, shape, usage if decoding.include_usage else None)
            super().__init__(pieces, headers={name.decode(): value.decode() for name, value in STREAM_HEADERS})
        else:
            super().__init__(dump(shape.whole(parts, usage)), media_type="application/json")
