"""The log: a line of JSON for each request, under the client's name for it, with what failed, without what was said."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server_process import ServerProcess

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SECRET = "xyzzy-plugh"
JSON = {"content-type": "application/json"}
BROKEN = """
from qpack_runtime.serve.http.tokens import Tokens
async def broken(self, request):
    raise RuntimeError("told to nobody")
Tokens.models = broken
"""
# The third token of an answer is none.
# Late enough for the two tokens before it to be on their way.
NO_TOKEN = """
import time
import qpack_runtime.serve.engine.sequence as sequence
from qpack_schemas.errors import QpackError
asked = []
def no_token(choice):
    asked.append(choice)
    if len(asked) % 3 == 0:
        time.sleep(1)
        raise QpackError("told to nobody")
sequence.require_token = no_token
"""


def logged(server: ServerProcess, request_id: str) -> dict[str, Any]:
    """The line of a request, once it has come."""
    while True:
        for line in list(server.log):
            if (line["event"], line.get("request_id")) == ("request", request_id):
                return line
        assert server.get("/livez")[0] == 200


def test_a_client_may_name_its_request_and_not_write_into_the_log(http: httpx2.Client, server: ServerProcess):
    assert http.get("/v1/models", headers={"x-request-id": "Mine-1._"}).headers["x-request-id"] == "Mine-1._"
    for bad in ("a b", 'a"b', "a\tb", "x" * 129, "é", "a;b", ""):
        answer = http.get("/nothing%0d%0aevil: yes", headers={b"x-request-id": bad.encode("utf-8")})
        assert answer.headers["x-request-id"] != bad
        assert len(answer.headers["x-request-id"]) == 32
        assert "evil" not in answer.headers
        line = logged(server, answer.headers["x-request-id"])
        assert (line["path"], line["status"]) == ("/nothing\r\nevil: yes", 404)
    assert server.plain == []


def test_a_failure_tells_the_client_nothing_and_the_log_all(bundle: Path):
    with ServerProcess(bundle, patch=BROKEN) as server:
        status, body, headers = server.ready().get("/v1/models")
        assert (status, body["error"]["type"]) == (500, "server_error")
        assert "told to nobody" not in json.dumps(body)
        assert headers["x-content-type-options"] == "nosniff"
        line = server.line("request_failed")
        assert line["request_id"] == headers["x-request-id"]
        assert "RuntimeError: told to nobody" in line["traceback"]
        assert server.get("/livez")[0] == 200


def test_an_answer_that_fails_tells_the_client_nothing_and_the_log_all(bundle: Path):
    with ServerProcess(bundle, patch=NO_TOKEN) as server:
        asked = {"prompt": "a", "max_tokens": 9, "logit_bias": {"511": -100}}
        status, body, headers = server.ready().get(COMPLETIONS, asked)
        assert (status, body["error"]["type"]) == (500, "server_error")
        assert "told to nobody" not in json.dumps(body)
        assert logged(server, headers["x-request-id"])["status"] == 500
        with httpx2.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=None) as http:
            stream = http.post(COMPLETIONS, json=asked | {"stream": True})
        *pieces, last, end = stream.text.split("\n\n")
        assert (len(pieces), json.loads(last.removeprefix("data: ")), end) == (2, body, "")
        assert logged(server, stream.headers["x-request-id"])["status"] == 200
        failed = [line for line in server.log if line["event"] == "request_failed"]
        assert [line["reason"] for line in failed] == ["told to nobody"] * 2
        assert [line["request_id"] for line in failed] == [headers["x-request-id"], stream.headers["x-request-id"]]


@pytest.fixture(params=[False, True], ids=["silent", "--log-prompts"])
def told(request: pytest.FixtureRequest, bundle: Path) -> Iterator[tuple[ServerProcess, bool]]:
    with ServerProcess(bundle, *(["--log-prompts"] if request.param else [])) as server:
        yield server.ready(), request.param


def test_texts_are_in_the_log_only_if_that_was_asked_for(told: tuple[ServerProcess, bool]):
    server, prompts = told
    message = [{"role": "user", "content": SECRET}]
    asked: list[tuple[str, Any]] = [
        (COMPLETIONS, {"prompt": SECRET, "max_tokens": 5, "echo": True}),
        (COMPLETIONS, {"prompt": SECRET, "max_tokens": 5, "stop": SECRET, "user": SECRET, "stream": True}),
        (CHAT, {"messages": message, "max_tokens": 5, "metadata": {"a": SECRET}}),
        (CHAT, {"messages": [*message, {"role": SECRET, "content": "a"}]}),
        (COMPLETIONS, {"prompt": SECRET, SECRET: 1}),
        (COMPLETIONS, {"prompt": SECRET, "model": SECRET}),
        (COMPLETIONS, {"prompt": SECRET * 1000}),
        ("/tokenize", {"prompt": SECRET}),
        ("/tokenize", {"messages": message}),
    ]
    with httpx2.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=None) as http:
        for number, (path, body) in enumerate(asked):
            http.post(path, json=body, headers={"x-request-id": f"r{number}"})
        http.post(COMPLETIONS, content=SECRET.encode(), headers={**JSON, "x-request-id": "last"})
    logged(server, "last")
    lines = [line for line in server.log if SECRET in json.dumps(line)]
    assert {(line["event"], line["request_id"]) for line in lines} == (
        {("prompt", "r0"), ("prompt", "r1"), ("prompt", "r2")} if prompts else set()
    )
    assert server.complaints() == []
