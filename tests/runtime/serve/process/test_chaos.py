"""A crowd of rude clients against one server: every complete answer is right, and nothing is left of them."""

import asyncio
import json
import random
import resource
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from runtime.serve.process.crowd import Crowd, Known
from runtime.serve.process.questions import questions, said
from runtime.serve.process.wire import connected, request
from runtime.serve.process.wrong_requests import HUGE, WRONG
from server_process import PATIENCE, SLOW_STEPS, ServerProcess

SEED = 20_240_229
QUESTIONS = 60
GROWTH = 16 << 20  # bytes that malloc may hold more after the crowd than after a smaller one before it
BLOCKS = 5000  # of Python's memory that may stay, for what is loaded late; what a request leaves is more, times all
# A patch: at SIGUSR1 the server logs how many blocks of Python's memory are in use.
COUNTED = """
import gc, itertools, json, signal, sys
def count(*_, numbers=itertools.count(1)):
    gc.collect()
    line = {"level": "info", "event": f"count {next(numbers)}", "blocks": sys.getallocatedblocks()}
    print(json.dumps(line), file=sys.stderr, flush=True)
signal.signal(signal.SIGUSR1, count)
"""


@pytest.fixture
def bundle(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3_5")


async def answered_alone(port: int) -> Known:
    """Each question with its answer, while nothing else runs."""
    known = []
    async with connected(port) as wire:
        for question in questions(random.Random(SEED), QUESTIONS):
            await wire.send(question.sent(stream=False))
            response = await wire.response()
            assert response.status == 200, (question, response)
            known.append((question, said(response)))
    return known


async def refused_alone(port: int) -> None:
    """Every wrong request gets one of its answers."""
    for wrong in (*WRONG, HUGE):
        async with connected(port) as wire:
            await wire.send(wrong.data)
            with suppress(ConnectionError):  # instead of an answer to who is refused while it still sends
                status, _ = await wire.head()
                assert status in wrong.statuses, wrong.name


async def idle(port: int) -> None:
    """Waits until nothing runs or waits."""
    async with asyncio.timeout(PATIENCE), connected(port) as wire:
        busy = True
        while busy:
            await wire.send(request("/stats", method="GET"))
            stats = (await wire.response()).json()
            busy = stats["running"] or stats["waiting"]


def settled(server: ServerProcess, sockets: int) -> tuple[list[str], int, int]:
    """Descriptors, threads and resident bytes of a server that is idle and has `sockets` left."""
    asyncio.run(idle(server.port))
    server.has_closed(sockets)
    return server.descriptors(), server.threads(), server.resident_bytes()


def blocks(server: ServerProcess, number: int) -> int:
    """Blocks of Python's memory, counted for the `number`th time."""
    server.signal(signal.SIGUSR1)
    return server.line(f"count {number}")["blocks"]


def check_crowd(bundle: Path, connections: int, requests: int) -> None:
    with ServerProcess(bundle, "--queue", str(connections), patch=COUNTED) as server:
        server.line("listening")
        sockets = server.sockets()  # no client has come yet
        port = server.ready().port
        known = asyncio.run(answered_alone(port))
        asyncio.run(refused_alone(port))
        warm_up = Crowd(port, known, SEED + 1)
        asyncio.run(warm_up.run(connections, requests // 4))
        assert not warm_up.problems, f"{warm_up}\n{server.told()}"
        before, blocks_before = settled(server, sockets), blocks(server, 1)
        crowd = Crowd(port, known, SEED)
        asyncio.run(crowd.run(connections, requests))
        after, blocks_after = settled(server, sockets), blocks(server, 2)
        assert not crowd.problems, f"{crowd}\n{server.told()}"
        assert crowd.counts["answered"] >= requests // 20, str(crowd)
        assert crowd.counts["refused"], str(crowd)
        assert after[:2] == before[:2], str(crowd)
        assert after[2] - before[2] < GROWTH, str(crowd)
        assert blocks_after - blocks_before < BLOCKS, str(crowd)
        assert asyncio.run(answered_alone(port)) == known, str(crowd)
        assert server.complaints() == [], str(crowd)
        server.process.terminate()
        assert server.wait() == 0


def test_a_crowd_gets_right_answers_and_leaves_nothing_behind(bundle: Path):
    check_crowd(bundle, 100, 800)


@pytest.mark.nightly
def test_a_thousand_connections_get_right_answers_and_leave_nothing_behind(bundle: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        check_crowd(bundle, 1000, 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_client_that_sends_on_and_then_leaves_frees_its_slots(bundle: Path):
    """Also where what it sends on is a request of its own, or a part of one."""
    endless = {"prompt": "And", "n": 4, "max_tokens": 100, "logit_bias": {"511": -100}}  # 511 would end it

    async def sends_on(server: ServerProcess) -> None:
        async with connected(server.port) as wire:
            await wire.send(request("/v1/completions", json.dumps(endless).encode("utf-8")))
            while server.get("/stats")[1]["running"] < 4:
                pass
            await wire.send(request("/livez", method="GET")[:10])
        await idle(server.port)

    with ServerProcess(bundle, patch=SLOW_STEPS) as server:
        asyncio.run(sends_on(server.ready()))
        answered = server.get("/stats")[1]["buckets"]
        assert sum(bucket["steps"] for bucket in answered if bucket["program"] == "decode") < endless["max_tokens"]
        assert server.complaints() == []


def test_a_full_queue_says_when_to_come_again(bundle: Path):
    asked = {"prompt": "And", "max_tokens": 100, "logit_bias": {"511": -100}}
    with ServerProcess(bundle, "--queue", "2", patch=SLOW_STEPS) as server, ThreadPoolExecutor(1) as pool:
        server.ready()
        fills = pool.submit(server.get, "/v1/completions", asked | {"n": 6})  # four slots and the queue
        while server.get("/stats")[1]["running"] < 4:
            pass
        status, body, headers = server.get("/v1/completions", asked)
        assert (status, body["error"]["code"]) == (429, "queue_full")
        milliseconds = int(headers["retry-after-ms"])
        assert milliseconds >= 1
        assert int(headers["retry-after"]) == -(-milliseconds // 1000)
        status, body, _ = server.get("/v1/completions", asked | {"n": 7})  # to come again would not help
        assert (status, body["error"]["type"]) == (400, "invalid_request_error")
        assert fills.result()[0] == 200


def test_garbage_behind_a_refused_body_cuts_the_connection(bundle: Path):
    head = request("/v1/nothing", headers="transfer-encoding: chunked\r\n")

    async def sends_garbage(port: int) -> None:
        async with connected(port) as wire:
            await wire.send(head)
            assert (await wire.response()).status == 404
            await wire.send(b"zz\r\n")
            await wire.has_ended()

    with ServerProcess(bundle) as server:
        asyncio.run(sends_garbage(server.ready().port))
        assert server.complaints() == []
