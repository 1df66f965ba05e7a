"""As much of a registry as the distribution specification asks for, in memory: one that keeps what came of a chunk when
the connection broke. Debian's docker-registry doesn't."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class SpecRegistry:
    def __init__(self, *, least_chunk: int = 0, ranges: bool = True):
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.ranges: list[tuple[int, int]] = []  # of the chunks, as they are announced
        uploads: dict[str, bytearray] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                last = self.path.rpartition("/")[2]
                if last in uploads:
                    return self.answer(204, Location=self.path, Range=f"0-{max(len(uploads[last]) - 1, 0)}")
                data = registry.manifests.get(last) if "/manifests/" in self.path else registry.blobs.get(last)
                if data is None:
                    return self.answer(404)
                begin = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("Range", ""))
                if begin is None or not ranges:
                    return self.answer(200, data)
                start = int(begin[1])
                return self.answer(206, data[start:], Content_Range=f"bytes {start}-{len(data) - 1}/{len(data)}")

            def do_POST(self) -> None:
                name = f"upload{len(uploads)}"
                uploads[name] = bytearray()
                self.answer(202, Location=f"{self.path}{name}", OCI_Chunk_Min_Length=str(least_chunk))

            def receive(self) -> bytearray | None:
                """What is there of the upload, with what has just come of it; None if that belongs elsewhere."""
                upload = uploads[urlsplit(self.path).path.rpartition("/")[2]]
                if found := re.fullmatch(r"([0-9]+)-([0-9]+)", self.headers.get("Content-Range", "")):
                    registry.ranges.append((int(found[1]), int(found[2])))
                    if int(found[1]) != len(upload):
                        self.answer(416)
                        return None
                left = int(self.headers["Content-Length"])
                while left and (data := self.rfile.read1(min(left, 1 << 16))):
                    upload += data
                    left -= len(data)
                return upload

            def do_PATCH(self) -> None:
                if (upload := self.receive()) is not None:
                    self.answer(202, Location=self.path, Range=f"0-{len(upload) - 1}")

            def do_PUT(self) -> None:
                if (upload := self.receive()) is not None:
                    digest = parse_qs(urlsplit(self.path).query)["digest"][0]
                    if digest != f"sha256:{hashlib.sha256(upload).hexdigest()}":
                        return self.answer(400)
                    registry.blobs[digest] = bytes(upload)
                    self.answer(201, Location=self.path)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # connections are cut on purpose

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "SpecRegistry":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
