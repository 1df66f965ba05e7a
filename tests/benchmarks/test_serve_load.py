"""benchmarks/serve_load.py: how servers come, take their turns and go, and what is said of them."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import serve_load
from qpack_runtime.boot import boot
from qpack_runtime.generate import generate
from qpack_runtime.sampling_options import SamplingOptions
from scripted_server import Script, serving, stream
from serving.plan import Plan
from serving.sender import Sent, send
from serving.servers import Shape, llama, ours


def run(*arguments: object) -> Result:
    return CliRunner().invoke(serve_load.main, [str(argument) for argument in arguments])


def test_servers_take_turns_with_the_same_requests_and_nobody_is_always_first():
    order: list[str] = []

    def noting(name: str) -> Script:
        return lambda number, body: (order.append(name), (200, stream("a", "b")))[1]

    with serving(noting("one")) as one, serving(noting("two")) as two:
        urls = [f"http://127.0.0.1:{server.server_port}" for server in (one, two)]
        ran = run(*urls, "--rounds", 2, "--requests", 2, "--clients", 1, "--answer-tokens", 2, "--end-id", 7,
                  "--format", "json")  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    assert order == ["one", "two", *["one"] * 2, *["two"] * 4, *["one"] * 2]
    assert one.bodies == two.bodies
    assert len({tuple(body["prompt"]) for body in one.bodies}) == 5
    asked = {"model": "scripted", "max_tokens": 2, "temperature": 0, "stream": True, "logit_bias": {"7": -100}}
    assert asked.items() <= one.bodies[-1].items()
    first, second = json.loads(ran.stdout)["rows"]
    assert (first["server"], first["answers"], first["short"], first["ratio"]) == (urls[0], 4, 0, 1)
    assert second["ratio"] == pytest.approx(second["tokens_per_s"] / first["tokens_per_s"])


def test_an_answer_that_is_another_one_in_the_load_is_an_error():
    def run_against(script: Script) -> Result:
        with serving(script) as server:
            url = f"http://127.0.0.1:{server.server_port}"
            return run(url, "--check-determinism", "--rounds", 1, "--requests", 3, "--answer-tokens", 2)

    same = run_against(lambda number, body: (200, stream("same ", str(body["prompt"][0]))))
    assert same.exit_code == 0, same.stderr
    assert "every answer is the one that its request gets alone" in same.stdout
    other = run_against(lambda number, body: (200, stream("same ", "later" if number > 4 else "first")))
    assert other.exit_code == 1
    assert "2 of 3 requests are answered otherwise in the load than alone" in other.stderr
    assert "from character 5 on 2 tokens with 'first' alone, 2 tokens with 'later' in the load" in other.stderr
    refused = run_against(lambda number, body: (200, stream("same ")) if number < 4 else (429, [b"full"]))
    assert "429 in the load full" in refused.stderr


PROGRAM = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
if "--version" in sys.argv:
    sys.exit(print("version: 1", file=sys.stderr))
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({{"data": [{{"id": " ".join(sys.argv[1:])}}]}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
server = HTTPServer(("127.0.0.1", 0), Handler)
print(f"main: server is listening on http://127.0.0.1:{{server.server_port}}", file=sys.stderr, flush=True)
server.serve_forever()
"""


def program(path: Path, content: str = PROGRAM) -> Path:
    path.write_text(content.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    return path


def state(pid: int | None) -> str:
    """As proc(5) has it: T is stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0]


def test_llama_server_gets_the_slots_and_the_threads_of_ours_and_stands_still_between_its_turns(tmp_path: Path):
    shape = Shape(slots=4, context=256, threads=2)
    with llama(tmp_path / "q4.gguf", program(tmp_path / "llama-server"), shape) as server:
        assert server.facts["version"] == "llama-server version: 1"
        with server.awake():
            asked = server.model()
            assert state(server.pid) in "RS"
        assert state(server.pid) == "T"
    for flag in ("--parallel 4", "--ctx-size 1024", "--threads 2", f"--model {tmp_path / 'q4.gguf'}"):
        assert flag in asked
    assert not Path(f"/proc/{server.pid}").exists()


def test_a_server_that_does_not_start_is_an_error_with_the_end_of_its_log(tmp_path: Path):
    broken = program(tmp_path / "llama-server", "#!{python}\nimport sys\nsys.exit('no such model')\n")
    ran = run(write(tmp_path / "q4.gguf"), "--llama-server", broken)
    assert ran.exit_code == 1
    assert "exit code 1: no such model" in ran.stderr


def write(path: Path) -> Path:
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://127.0.0.1:1", "--rate", "2", "--clients", "2"], "two ways to send a load"),
        (["https://127.0.0.1:1"], "no address of a server"),
        (["nowhere"], "'nowhere' is no bundle"),
        ([], "--work"),
        (["http://127.0.0.1:1", "--overhead"], "--overhead measures the executor of a bundle"),
    ],
)
def test_what_can_not_be_measured_is_a_usage_error(arguments: list[str], said: str):
    ran = run(*arguments)
    assert ran.exit_code == 2, ran.stderr
    assert said in ran.stderr


def test_a_request_in_the_load_gets_what_generate_gives(tiny_bundle: Callable[[str], Path]):
    bundle = tiny_bundle("tiny-qwen3")
    booted = boot(bundle, "cpu", threads=1)
    ends = booted.bundle.manifest["model"]["eos_token_ids"]
    plan = Plan(
        requests=8, prompt_tokens=20, answer_tokens=16, prompts=None, rate=None, clients=5, seed=0, end_ids=ends
    )
    shape = Shape(slots=booted.engine.slots, context=booted.engine.context, threads=1)
    with ours(bundle, shape, queue=8) as server, server.awake():
        asked = plan.load(server, 0)
        answers = send(asked).answers
    options = SamplingOptions(logit_bias=dict.fromkeys(ends, -100.0))
    for body, got in zip(asked.bodies, answers, strict=True):
        *_, made = generate(booted, body["prompt"], max_tokens=16, options=options)
        assert (got.failure, got.tokens, got.text) == ("", 16, made.text)


def test_a_bundle_is_served_checked_and_compared_with_its_executor(
    tiny_bundle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    overhead: Callable[..., dict[str, Any]] = serve_load.overhead
    waves: list[Sent] = []

    def on_an_even_clock(*arguments: Any) -> dict[str, Any]:
        """The answers of a wave are the server's, their times those of a host that does nothing else."""
        *others, wave = arguments

        def timed(number: int, tokens: int) -> Sent:
            waves.append(wave(number, tokens))
            return replace(waves[-1], answers=[replace(one, times=[0.0, 0.5, 1.0]) for one in waves[-1].answers])

        return overhead(*others, timed)

    monkeypatch.setattr(serve_load, "overhead", on_an_even_clock)
    arguments = "--check-determinism --overhead --requests 6 --rate 50 --rounds 1 --prompt-tokens 20 --answer-tokens 24"
    ran = run(tiny_bundle("tiny-qwen3_5"), *arguments.split(), "--threads", 1, "--format", "json")
    assert ran.exit_code == 0, ran.stderr
    report = json.loads(ran.stdout)
    (row,) = report["rows"]
    assert (row["answers"], row["short"], row["failures"], report["same_answers"]) == (6, 0, {}, True)
    assert 0 < row["ttft_ms"]["p50"] <= row["answer_ms"]["p50"]
    (wave,) = waves
    assert [one.tokens for one in wave.answers] == [4 * 20 // 16 + 64] * 4
    cost = report["overhead"]
    assert (cost["batch"], cost["contexts"]) == (4, [20 + 2 - 16])
    assert cost["server_tokens_per_s"] == 8.0
    assert cost["share"] == 8.0 / cost["executor_tokens_per_s"]
    assert 4 + 68 <= cost["steps"] <= 4 * (20 + 68)  # prompts, and decode steps that took one to four sequences
    assert cost["host_ms"]["mean"] > 0
