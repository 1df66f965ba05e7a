"""The life of a server process: what it answers while it boots, drains and fails, how it ends, and what it leaves."""

import hashlib
import json
import shutil
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from server_process import SLOW_STEPS, ServerProcess, ended

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "And the LORD said", "seed": 3, "max_tokens": 100, "logit_bias": {"511": -100}}  # 511 would end it
SHORT = LONG | {"max_tokens": 3}

# The boot, or the end, waits until the test closes the server's stdin.
HELD_BOOT = """
import sys, qpack_runtime.serve.process as process
first_step = process.run_first_step
def held(booted):
    sys.stdin.read()
    first_step(booted)
process.run_first_step = held
"""
HELD_END = """
import asyncio, sys, qpack_runtime.serve.process as process
end = process.Process._end
async def held(self):
    await asyncio.to_thread(sys.stdin.read)
    await end(self)
process.Process._end = held
"""
# The first step of the boot is the first decode step; the one of the `steps`th token of an answer fails.
FAILING_STEP = """
from qpack_runtime.engine import Engine
left = [{steps}]
def failing(self, slots, decode=Engine.launch_decode):
    left[0] -= 1
    if left[0] < 0:
        raise RuntimeError("the device is gone")
    return decode(self, slots)
Engine.launch_decode = failing
"""
# The same behind six steps, once the test has sent a line.
STUCK_STEP = """
import sys
from qpack_runtime.engine import Engine
left = [6]
def failing(self, slots, decode=Engine.launch_decode):
    left[0] -= 1
    if left[0] < 0:
        print('{"level": "info", "event": "stuck"}', file=sys.stderr, flush=True)
        sys.stdin.readline()
        raise RuntimeError("the device is gone")
    return decode(self, slots)
Engine.launch_decode = failing
"""


@pytest.fixture
def bundle(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3_5")


def digests(bundle: Path) -> dict[str, tuple[int, str]]:
    """Mode and digest of each file, so that nothing changed, came or went."""
    files = (path for path in sorted(bundle.rglob("*")) if path.is_file())
    return {
        str(file.relative_to(bundle)): (file.stat().st_mode, hashlib.sha256(file.read_bytes()).hexdigest())
        for file in files
    }


def test_a_booting_server_is_alive_and_not_ready(bundle: Path):
    with ServerProcess(bundle, patch=HELD_BOOT, hears=True) as server:
        assert server.get("/livez")[:2] == (200, {"alive": True})
        status, body, headers = server.get(COMPLETIONS, SHORT)
        assert (status, body["error"]["code"]) == (503, "not_ready")
        assert int(headers["retry-after"]) >= 1
        assert int(headers["retry-after-ms"]) >= 1
        while (state := server.get("/readyz"))[1]["phase"] != "first_step":
            assert state[0] == 503
        status, body, _ = state
        assert status == 503
        assert body["ready"] is False
        assert body["buckets"] == dict.fromkeys(
            (f"{kind}-c{context}" for kind in ("decode-b1", "decode-b4", "prefill-t1", "prefill-t16", "prefill-t64")
             for context in (64, 128)), True,
        )  # fmt: skip
        status, body, _ = server.get("/startupz")
        assert (status, body["started"], body["phase"]) == (503, False, "first_step")
        assert server.process.stdin is not None
        server.process.stdin.close()
        server.ready()
        assert server.get("/startupz")[0] == 200
        status, body, _ = server.get(COMPLETIONS, SHORT)
        assert (status, body["usage"]["completion_tokens"]) == (200, 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_what_runs_and_refuses_what_comes(bundle: Path, number: int):
    with ServerProcess(bundle, patch=SLOW_STEPS) as server:
        children = server.ready().children()
        alone = server.get(COMPLETIONS, LONG)[1]["choices"][0]["text"]
        events = iter(server.stream(COMPLETIONS, LONG))
        first = next(events)
        server.signal(number)
        assert server.line("draining")["running"] == 1
        status, body, headers = server.get(COMPLETIONS, SHORT)
        assert (status, body["error"]["code"], "retry-after" in headers) == (503, "not_ready", True)
        assert server.get("/readyz")[:2] == (503, server.get("/readyz")[1] | {"ready": False, "phase": "draining"})
        assert server.get("/livez")[0] == 200
        *rest, done = events
        assert done == "[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in (first, *rest)) == alone
        assert server.wait() == 0
        assert all(ended(child) for child in children.values())
        assert len(children) == 1
        assert server.complaints() == []


def test_answers_that_outlive_the_drain_end_with_an_error_event(bundle: Path):
    with ServerProcess(bundle, "--drain", "0", patch=SLOW_STEPS) as server:
        children = server.ready().children()
        events = iter(server.stream(COMPLETIONS, LONG))
        next(events)
        server.signal(signal.SIGTERM)
        *_, last = events
        assert json.loads(last)["error"]["code"] == "drain"
        assert server.wait() == 0
        assert all(ended(child) for child in children.values())
        assert server.complaints() == []


def test_an_answer_that_has_not_begun_is_told_that_the_drain_is_over(bundle: Path):
    with ServerProcess(bundle, patch=SLOW_STEPS) as server:
        server.ready()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.get, COMPLETIONS, LONG)
            while server.get("/stats")[1]["running"] == 0:
                pass
            server.signal(signal.SIGTERM)
            server.line("draining")
            server.signal(signal.SIGTERM)  # a second one ends the wait
            status, body, _ = answer.result()
        assert (status, body["error"]["code"]) == (503, "drain")
        assert server.wait() == 0
        assert server.complaints() == []


def test_a_body_that_is_half_sent_does_not_hold_up_the_end(bundle: Path):
    with ServerProcess(bundle) as server, socket.create_connection(("127.0.0.1", server.ready().port)) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(head + b"content-length: 100\r\nexpect: 100-continue\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")  # so that the server is behind the head
        client.sendall(b"{")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        said = client.makefile("rb").read()
        assert said.startswith(b"HTTP/1.1 503 "), said
        assert not [line for line in server.log if "traceback" in line]


def test_a_bundle_that_takes_the_place_of_the_booted_one_is_not_mixed_with_it(
    bundle: Path, tiny_bundle: Callable[[str], Path], tmp_path: Path
):
    """The executor has its weights; the chat template and the defaults are still to be read."""
    place = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    with ServerProcess(place, patch=HELD_BOOT, hears=True) as server:
        while server.get("/readyz")[1]["phase"] != "first_step":
            pass
        place.rename(tmp_path / "bundle.previous")
        shutil.copytree(tiny_bundle("tiny-qwen3"), place)
        assert server.process.stdin is not None
        server.process.stdin.close()
        assert server.wait() == 1
        assert "another bundle took its place while it was booted" in server.told()
        assert '"event": "ready"' not in server.told()


def test_a_signal_ends_a_boot(bundle: Path):
    with ServerProcess(bundle, patch=HELD_BOOT, hears=True) as server:
        while server.get("/readyz")[1]["phase"] != "first_step":
            pass
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.complaints() == []


def test_a_killed_server_leaves_the_bundle_as_it_was_and_no_process(bundle: Path, tmp_path: Path):
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    before = digests(copy)
    with ServerProcess(copy) as server:
        children = server.ready().children()
        expected = server.get(COMPLETIONS, LONG)[1]["choices"]
        next(iter(server.stream(COMPLETIONS, LONG)))
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        assert [ended(child) for child in children.values()] == [True]
    assert digests(copy) == before
    with ServerProcess(copy) as server:
        assert server.ready().get(COMPLETIONS, LONG)[1]["choices"] == expected


def test_an_engine_that_fails_fails_its_requests_and_ends_the_process(bundle: Path):
    with ServerProcess(bundle, patch=SLOW_STEPS + FAILING_STEP.format(steps=30)) as server:
        children = server.ready().children()
        *_, last = server.stream(COMPLETIONS, LONG)
        assert json.loads(last)["error"]["type"] == "server_error"
        assert server.wait() == 1
        assert server.plain == ["error: the engine failed: RuntimeError: the device is gone"]
        assert [line["event"] for line in server.log if line["level"] == "error"] == ["engine_failed"]
        assert all(ended(child) for child in children.values())


def test_a_server_whose_engine_has_failed_is_not_alive_and_leaves_no_request_open(bundle: Path):
    """Neither what runs nor what the engine has not even seen; and what comes later is refused."""
    with ServerProcess(bundle, patch=STUCK_STEP + HELD_END, hears=True) as server, ThreadPoolExecutor(8) as pool:
        stdin = server.ready().process.stdin
        assert stdin is not None
        asked = [pool.submit(server.get, COMPLETIONS, LONG)]
        server.line("stuck")
        asked += [pool.submit(server.get, COMPLETIONS, LONG) for _ in range(7)]
        while server.get("/stats")[1]["waiting"] < 7:
            pass
        stdin.write(b"\n")
        stdin.flush()
        assert [one.result()[0] for one in asked] == [500] * 8
        assert server.get("/livez")[:2] == (503, {"alive": False, "problem": "the device is gone"})
        status, body, _ = server.get("/readyz")
        assert (status, body["phase"]) == (503, "failed")
        assert server.get(COMPLETIONS, SHORT)[0] == 503
        stdin.close()
        assert server.wait() == 1


def test_an_engine_that_fails_while_it_drains_is_no_success(bundle: Path):
    with ServerProcess(bundle, patch=SLOW_STEPS + FAILING_STEP.format(steps=60)) as server:
        events = iter(server.ready().stream(COMPLETIONS, LONG))
        next(events)
        server.signal(signal.SIGTERM)
        server.line("draining")
        *_, last = events
        assert "error" in json.loads(last)
        assert server.wait() == 1


def refused(bundle: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and message of a server that does not come up."""
    with ServerProcess(bundle, *arguments) as server:
        code = server.wait()
        assert not [line for line in server.log if "traceback" in line]
        assert server.plain[0].startswith("error: ")
        assert server.plain[-1].startswith("  remedy: ")
        return code, server.plain


def test_a_port_in_use_is_a_usage_error(bundle: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, (message, _) = refused(bundle, "--port", str(port))
    assert (code, message) == (2, f"error: can't listen on 127.0.0.1 port {port}: Address already in use")


def test_a_bundle_that_is_not_there_ends_the_boot(tmp_path: Path):
    code, lines = refused(tmp_path / "none")
    assert code == 1
    assert str(tmp_path / "none") in lines[0]


def test_a_damaged_bundle_ends_the_boot(bundle: Path, tmp_path: Path):
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    weights = next((copy / "weights").iterdir())
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(data)
    code, lines = refused(copy)
    assert code == 5
    assert any(weights.name in line for line in lines)
