"""Requests that no client should send, each with the statuses that may answer it; none is the server's fault."""

import json
from dataclasses import dataclass

from runtime.serve.process.wire import request

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CLOSE = "connection: close\r\n"
JSON = "content-type: application/json\r\n"
EMPTY = f"content-length: 0\r\n{CLOSE}"


@dataclass(frozen=True)
class Wrong:
    """`data` is all that is sent. `statuses`: of the first response."""

    name: str
    data: bytes
    statuses: frozenset[int]


def _wrong(name: str, data: bytes, *statuses: int) -> Wrong:
    return Wrong(name, data, frozenset(statuses))


def _body(name: str, body: bytes, path: str = COMPLETIONS) -> Wrong:
    return _wrong(name, request(path, body, headers=CLOSE), 400)


def _chunked(path: str, chunks: bytes) -> bytes:
    return request(path, headers=f"{JSON}transfer-encoding: chunked\r\n") + chunks


WRONG = (
    _body("not JSON", b"prompt=hello"),
    _body("an end too early", b'{"prompt": "a"'),
    _body("no object", b"[1, 2]"),
    _body("nothing", b""),
    _body("not UTF-8", b'{"prompt": "\xff\xfe"}'),
    _body("UTF-16", '{"prompt": "a"}'.encode("utf-16")),
    _body("half of a surrogate pair", b'{"prompt": "\\ud800"}'),
    _body("deep lists", b"[" * 200_000),
    _body("deep objects", b'{"a":' * 50_000 + b"1" + b"}" * 50_000, CHAT),
    _body("deep messages", b'{"messages":' + b"[" * 99 + b"]" * 99 + b"}", CHAT),
    _body("no number", b'{"prompt": "a", "temperature": NaN}'),
    _body("a huge number", b'{"prompt": "a", "max_tokens": 1' + b"0" * 10_000 + b"}"),
    _body("a negative count", b'{"prompt": "a", "n": -1}'),
    _body("too many sequences", b'{"prompt": "a", "n": 1000000000}'),
    _body("a key twice", b'{"prompt": "a", "prompt": "b"}'),
    _body("an unknown field", b'{"prompt": "a", "temprature": 1}'),
    _body("an unknown token", b'{"prompt": [2147483647]}'),
    _body("a prompt too long", json.dumps({"prompt": "amen " * 100_000}).encode("ascii")),
    _body("an unknown role", b'{"messages": [{"role": "robot", "content": "a"}]}', CHAT),
    _body("no schema", b'{"prompt": "a", "response_format": {"type": "json_schema"}}'),
    _wrong("another type", request(COMPLETIONS, headers=f"content-type: text/plain\r\n{EMPTY}"), 415),
    _wrong("no type", request(COMPLETIONS, headers=EMPTY), 415),
    _wrong("another method", request(COMPLETIONS, method="GET", headers=CLOSE), 405),
    _wrong("a made-up method", request(COMPLETIONS, method="BREW", headers=CLOSE), 405),
    _wrong("no such path", request("/v1/nothing", b"{}", headers=CLOSE), 404),
    _wrong("a path out of the tree", request("/page/..%2f..%2fserver.py", method="GET", headers=CLOSE), 404),
    _wrong("another model", request(COMPLETIONS, b'{"prompt": "a", "model": "gpt"}', headers=CLOSE), 404),
    _wrong("another host", b"GET /stats HTTP/1.1\r\nhost: example.com\r\nconnection: close\r\n\r\n", 400),
    _wrong("no host", b"GET /stats HTTP/1.1\r\nconnection: close\r\n\r\n", 400),
    _wrong("a huge length", request(COMPLETIONS, headers=f"{JSON}content-length: 99999999999\r\n"), 413),
    _wrong("a negative length", request(COMPLETIONS, headers="content-length: -1\r\n"), 400),
    _wrong("two lengths", request(COMPLETIONS, headers="content-length: 3\r\ncontent-length: 4\r\n"), 400),
    _wrong("a huge head", request(COMPLETIONS, headers=f"x-a: {'a' * 1_000_000}\r\n"), 400),
    _wrong("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100 + b"\r\n\r\n", 400),
    _wrong("another version", b"GET / HTTP/nine\r\nhost: localhost\r\n\r\n", 400),
    _wrong("a chunk of no size", _chunked(COMPLETIONS, b"zz\r\nabc\r\n"), 400),
    _wrong("a chunk of no size that nobody waits for", _chunked("/v1/nothing", b"1\r\na\r\nzz\r\n"), 400, 404),
)  # fmt: skip
HUGE = _wrong("a body without an end", _chunked(COMPLETIONS, b"400000\r\n" + b" " * 0x400000 + b"\r\n1\r\n \r\n"), 413)
GARBAGE = (b"\x00\xff\x00garbage\r\n\r\n", b"GET / HTTP/1.1\r\n" * 3 + b"\r\n", b"{" * 1000 + b"\r\n\r\n")
