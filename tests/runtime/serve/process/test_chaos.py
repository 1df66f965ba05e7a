"""A crowd of rude clients against one server: every complete answer is right, and nothing is left of them."""

import asyncio
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.serve.process.crowd import Crowd, Known
from runtime.serve.process.questions import questions, said
from runtime.serve.process.wire import connected, request
from server_process import ServerProcess

SEED = 20_240_229
QUESTIONS = 60
GROWTH = 8 << 20  # bytes that malloc may hold more after the crowd than after a smaller one before it


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


async def idle(port: int) -> None:
    """Waits until nothing runs or waits."""
    async with connected(port) as wire:
        busy = True
        while busy:
            await wire.send(request("/stats", method="GET"))
            stats = (await wire.response()).json()
            busy = stats["running"] or stats["waiting"]


def settled(server: ServerProcess, sockets: int) -> tuple[list[str], int, int]:
    """Descriptors, threads and resident bytes of a server that is idle, once it has only `sockets` left, or keeps more
    for longer than any deadline of a connection."""
    asyncio.run(idle(server.port))
    deadline = time.monotonic() + 90
    while server.descriptors().count("socket") > sockets and time.monotonic() < deadline:
        time.sleep(0.01)
    return server.descriptors(), server.threads(), server.resident_bytes()


def check_crowd(bundle: Path, connections: int, requests: int) -> None:
    with ServerProcess(bundle, "--queue", str(connections)) as server:
        server.line("listening")
        sockets = server.descriptors().count("socket")  # no client has come yet
        port = server.ready().port
        known = asyncio.run(answered_alone(port))
        warm_up = Crowd(port, known, SEED + 1)
        asyncio.run(warm_up.run(connections, requests // 4))
        assert not warm_up.problems, f"{warm_up}\n{server.told()}"
        before = settled(server, sockets)
        crowd = Crowd(port, known, SEED)
        asyncio.run(crowd.run(connections, requests))
        print(crowd)
        after = settled(server, sockets)
        print(before, after)
        assert not crowd.problems, f"{crowd}\n{server.told()}"
        assert crowd.counts["answered"] >= requests // 20, str(crowd)
        assert crowd.counts["refused"], str(crowd)
        assert after[:2] == before[:2], str(crowd)
        assert after[2] - before[2] < GROWTH, str(crowd)
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
