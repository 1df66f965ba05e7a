"""Every wait of a connection or a request has its end: for a head, a body, a reader, a slot, an answer."""

import asyncio
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime.serve.process.wire import SMALL_BUFFER, Response, connected, request
from server_process import PATIENCE, SLOW_STEPS, ServerProcess

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "And the LORD said", "seed": 3, "max_tokens": 100, "logit_bias": {"511": -100}}  # 511 would end it

HEAD = "import qpack_runtime.serve.http.protocol as protocol; protocol.HEAD_SECONDS = 2"
BODY = "import qpack_runtime.serve.http.body as body; body.SECONDS = 2"
READ = "import qpack_runtime.serve.http.protocol as protocol; protocol.READ_SECONDS = 2"


@pytest.fixture
def bundle(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3_5")


async def until_cut(port: int, *parts: bytes) -> list[Response]:
    """Sends parts, each but the last followed by a response, then nothing, until the server closes the connection."""
    async with asyncio.timeout(PATIENCE), connected(port) as wire:
        responses = []
        for part in parts[:-1]:
            await wire.send(part)
            responses.append(await wire.response())
        await wire.send(parts[-1])
        await wire.has_ended()
        return responses


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nhost: localhost\r\n"])
def test_a_connection_without_a_whole_head_is_cut(bundle: Path, sent: bytes):
    with ServerProcess(bundle, patch=HEAD) as server:
        assert asyncio.run(until_cut(server.ready().port, sent)) == []
        assert server.complaints() == []


def test_each_request_of_a_connection_has_the_deadline_for_its_own_head(bundle: Path):
    live = request("/livez", method="GET")
    with ServerProcess(bundle, patch=HEAD) as server:
        answers = asyncio.run(until_cut(server.ready().port, live, live, live[:10]))
        assert [answer.status for answer in answers] == [200, 200]


def test_the_rest_of_a_body_behind_its_answer_has_a_deadline_too(bundle: Path):
    head = request("/v1/nothing", headers="content-length: 100\r\n")
    with ServerProcess(bundle, patch=HEAD) as server:
        answers = asyncio.run(until_cut(server.ready().port, head, b"x"))
        assert [answer.status for answer in answers] == [404]


def test_a_body_that_does_not_come_is_answered_in_time(bundle: Path):
    data = request(COMPLETIONS, json.dumps(LONG).encode("utf-8"))
    with ServerProcess(bundle, patch=f"{HEAD}\n{BODY}") as server:
        answer, *_ = asyncio.run(until_cut(server.ready().port, data[:-5], b""))
        assert answer.status == 408
        assert "body" in answer.json()["error"]["message"]


def test_who_does_not_read_is_cut(bundle: Path):
    """It asks for more answers than all buffers hold. Another client is served meanwhile."""
    with ServerProcess(bundle, patch=READ) as server, socket.socket() as client:
        server.line("listening")
        sockets = server.sockets()  # no client has come yet
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        client.connect(("127.0.0.1", server.ready().port))
        client.sendall(request("/openapi.json", method="GET") * 1000)
        assert client.recv(1)
        assert server.get("/livez")[0] == 200
        assert server.has_closed(sockets)
        assert server.complaints() == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_ends_at_its_own_timeout(bundle: Path, stream: bool):
    with ServerProcess(bundle, patch=SLOW_STEPS) as server:
        server.ready()
        if stream:
            *pieces, last = server.stream(COMPLETIONS, LONG | {"timeout": 1})
            assert 0 < len(pieces) < LONG["max_tokens"]
            error = json.loads(last)["error"]
        else:
            status, body, _ = server.get(COMPLETIONS, LONG | {"timeout": 1})
            assert status == 503
            error = body["error"]
        assert (error["code"], "1 s" in error["message"]) == ("timeout", True)
        wait_until_idle(server)


def test_the_server_bounds_every_timeout(bundle: Path):
    with ServerProcess(bundle, "--timeout", "0.5", patch=SLOW_STEPS) as server:
        status, body, _ = server.ready().get(COMPLETIONS, LONG | {"timeout": 3600})
        assert (status, body["error"]["code"]) == (503, "timeout")
        wait_until_idle(server)


def test_a_request_that_gets_no_slot_in_time_leaves_the_queue(bundle: Path):
    """It computes nothing and holds up nobody; what runs ends as it would without it."""
    with ServerProcess(bundle, patch=SLOW_STEPS) as server:
        alone = server.ready().get(COMPLETIONS, LONG)[1]["choices"][0]
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(server.get, COMPLETIONS, LONG | {"n": 4})
            while server.get("/stats")[1]["running"] < 4:
                pass
            status, body, _ = server.get(COMPLETIONS, LONG | {"timeout": 0.2})
            assert (status, body["error"]["code"]) == (503, "timeout")
            stats = server.get("/stats")[1]
            assert (stats["running"], stats["waiting"]) == (4, 0)
            assert running.result()[1]["choices"][0] == alone


def wait_until_idle(server: ServerProcess) -> None:
    while (stats := server.get("/stats")[1])["running"] or stats["waiting"]:
        pass
