"""A server for the chat page's tests: it serves the page as the real one does, and each test writes the answers."""

import asyncio
import json
import queue
import threading
from collections import deque
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

import qpack_runtime

PAGE = Path(qpack_runtime.__file__).parent / "serve" / "page"
SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def bucket(program: str, rows: int, context: int, steps: int, seconds: float) -> dict[str, Any]:
    name = f"{program}-b{rows}-c{context}"
    sizes = {"name": name, "program": program, "rows": rows, "context": context}
    return {**sizes, "ready": True, "steps": steps, "seconds": seconds}


STATS = {
    "model": "Qwen3.5-2B",
    "bundle_id": "9f2c1ab7d0e45c8812aa34bb56cc78dd90ee12ff34aa56bb78cc90dd12ee34ff",
    "device": "cpu",
    "ready": True,
    "context": 2048,
    "slots": 8,
    "running": 2,
    "waiting": 0,
    "queue_limit": 64,
    "defaults": {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1},
    "buckets": [
        bucket("decode", 1, 512, 60, 1.2),
        bucket("decode", 8, 512, 30, 1.5),
        bucket("decode", 8, 2048, 0, 0),
        bucket("prefill", 256, 2048, 10, 4),
    ],
}


def error_body(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "error", "param": None, "code": None}}


class Exchange:
    """One POST /v1/chat/completions: its request, and the answer's stream, which the test writes piece by piece."""

    def __init__(self, request: dict[str, Any], headers: dict[str, str]):
        self.request, self.headers = request, headers
        self.left = threading.Event()  # the client closed the connection before the answer had ended
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def raw(self, data: bytes) -> None:
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, data)

    def event(self, value: Any) -> None:
        self.raw(f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode())

    def say(self, *texts: str) -> None:
        for text in texts:
            self.event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})

    def finish(self, reason: str = "stop", prompt: int = 12, cached: int = 0, answer: int = 3) -> None:
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        details = {"cached_tokens": cached}
        usage = {"prompt_tokens": prompt, "completion_tokens": answer, "prompt_tokens_details": details}
        self.event({"choices": [], "usage": usage})
        self.raw(b"data: [DONE]\n\n")
        self.end()

    def end(self) -> None:
        """Closes the body, whole or not."""
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, None)

    async def stream(self, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        leaving = asyncio.ensure_future(receive())  # the body has been read: what comes next is the disconnect
        while True:
            piece = asyncio.ensure_future(self._pieces.get())
            await asyncio.wait({piece, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                piece.cancel()
                self.left.set()
                return
            if (data := piece.result()) is None:
                leaving.cancel()
                await send({"type": "http.response.body"})
                return
            await send({"type": "http.response.body", "body": data, "more_body": True})


class FakeServer:
    """Runs in a thread of its own. `phase`, `key`, `stats` and `refusals` may be set at any time."""

    def __init__(self) -> None:
        self.stats: dict[str, Any] = json.loads(json.dumps(STATS))
        self.phase: str | None = None  # what the server is booting; None: it is ready
        self.key: str | None = None  # the API key without which nothing is answered
        self.refusals: deque[Response] = deque()  # answers to the next chat requests, before any exchange
        self.asked: list[str] = []  # the path of each request
        self._exchanges: queue.Queue[Exchange] = queue.Queue()
        routes = [
            Route("/", lambda _: FileResponse(PAGE / "index.html")),
            Mount("/page", StaticFiles(directory=PAGE)),
            Route("/readyz", self._readyz),
            Route("/stats", self._stats),
        ]
        config = uvicorn.Config(
            self._answer, interface="asgi3", port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1
        )
        self._app, self._server = Starlette(routes=routes), uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> "FakeServer":
        started = threading.Event()
        startup = self._server.startup

        async def announce(sockets: Any = None) -> None:
            await startup(sockets)
            started.set()

        self._server.startup = announce
        self._thread.start()
        started.wait()
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def exchange(self) -> Exchange:
        """The next chat request, waited for."""
        return self._exchanges.get(timeout=30)

    def idle(self) -> bool:
        """No chat request has come that a test hasn't taken."""
        return self._exchanges.empty()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                policy = (b"content-security-policy", SECURITY_POLICY.encode())
                message = {**message, "headers": [*message["headers"], policy]}
            await send(message)

        self.asked.append(scope["path"])
        app = self._chat if scope["path"] == "/v1/chat/completions" else self._app
        await app(scope, receive, with_policy)

    def _refused(self, request: Request) -> Response | None:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse(error_body("An API key is needed."), 401)
        return None

    async def _readyz(self, _: Request) -> Response:
        return JSONResponse({"phase": self.phase or "ready"}, 503 if self.phase else 200)

    async def _stats(self, request: Request) -> Response:
        return self._refused(request) or JSONResponse(self.stats)

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.json()
        refusal = self._refused(request) or (self.refusals.popleft() if self.refusals else None)
        if refusal:
            await refusal(scope, receive, send)
            return
        exchange = Exchange(body, dict(request.headers))
        self._exchanges.put(exchange)
        await exchange.stream(receive, send)
