"""A server of HTTP that answers as a script says, for clients of OpenAI's completions."""

import json
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DONE = b"data: [DONE]\n\n"


def event(**value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def stream(*texts: str) -> list[bytes]:
    """The events of an answer, a token each."""
    pieces = [event(choices=[{"text": text}]) for text in texts]
    return [*pieces, event(choices=[], usage={"completion_tokens": len(texts)}), DONE]


Script = Callable[[int, dict[str, Any]], tuple[int, Sequence[bytes]]]


class Scripted(ThreadingHTTPServer):
    """A server that answers the request of a number with the status and events that `script` says."""

    daemon_threads = True

    def __init__(self, script: Script):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.lock = script, threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.under_way = self.most_under_way = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def do_GET(self) -> None:
        self._send(200, "application/json", [b'{"data": [{"id": "scripted"}]}'], lambda: None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server
        with server.lock:
            number = len(server.bodies)
            server.bodies.append(body)
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
        status, pieces = server.script(number, body)
        self._send(status, "text/event-stream", pieces, self._over)

    def _over(self) -> None:
        with self.server.lock:
            self.server.under_way -= 1

    def _send(self, status: int, kind: str, pieces: Sequence[bytes], before_the_end: Callable[[], None]) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        before_the_end()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(script: Script) -> Generator[Scripted]:
    with Scripted(script) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
