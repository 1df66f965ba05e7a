"""benchmarks/serve_load.py: what it sends and when, what it makes of the answers, and how servers come and go."""

import importlib
import json
import math
import statistics
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from qpack_runtime.boot import boot
from qpack_runtime.generate import generate
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.errors import InputError, QpackError

FOLDER = Path(__file__).parents[2] / "benchmarks"
DONE = b"data: [DONE]\n\n"


def module(name: str) -> Any:
    """A module of the benchmark, which no install has."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(module("serve_load").main, [str(argument) for argument in arguments])


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


def load(server: Scripted, count: int, **how: Any) -> Any:
    bodies = [{"prompt": [number]} for number in range(count)]
    return module("serving.arrivals").Load("127.0.0.1", server.server_port, bodies, **how)


def answer(due: float = 0.0, times: Sequence[float] = (), **fields: Any) -> Any:
    values = {"end": times[-1] if times else due, "tokens": len(times), "failure": "", **fields}
    return module("serving.answer").Answer(due, times=list(times), **values)


def test_arrivals_are_a_poisson_process_and_the_same_for_a_seed():
    poisson, rate, count = module("serving.arrivals").poisson, 4.0, 20_000
    due = list(poisson(rate, count, seed=1))
    gaps = [later - earlier for earlier, later in zip([0.0, *due], due, strict=False)]
    # Of an exponential distribution: mean and deviation are 1 / rate, and 1 / e lie above the mean.
    assert statistics.mean(gaps) == pytest.approx(1 / rate, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / rate, rel=0.03)
    assert sum(gap > 1 / rate for gap in gaps) / count == pytest.approx(1 / math.e, rel=0.03)
    assert due == list(poisson(rate, count, seed=1))
    assert due != list(poisson(rate, count, seed=2))


def test_as_many_requests_are_under_way_as_there_are_clients():
    with serving(lambda number, body: (200, stream("a", "b"))) as server:
        sent = module("serving.sender").send(load(server, 10, clients=3))
    assert server.most_under_way <= 3
    assert sum(one.due < min(other.end for other in sent.answers) for one in sent.answers) == 3
    assert sorted(body["prompt"] for body in server.bodies) == [[number] for number in range(10)]


def test_requests_that_are_due_do_not_wait_for_answers():
    here = threading.Barrier(8)

    def all_are_here(number: int, body: dict[str, Any]) -> tuple[int, list[bytes]]:
        here.wait()
        return 200, stream("a")

    with serving(all_are_here) as server:
        due = [0.001 * number for number in range(8)]
        sent = module("serving.sender").send(load(server, 8, due=due))
    assert [one.due for one in sent.answers] == due
    assert [one.failure for one in sent.answers] == [""] * 8
    assert all(one.times[0] >= due[-1] for one in sent.answers)


def test_each_answer_is_its_requests():
    with serving(lambda number, body: (200, stream(*["token "] * body["prompt"][0], "end"))) as server:
        sent = module("serving.sender").send(load(server, 6, clients=6))
    assert [one.text for one in sent.answers] == ["token " * number + "end" for number in range(6)]
    assert [one.tokens for one in sent.answers] == [1, 2, 3, 4, 5, 6]
    assert sent.seconds >= max(one.end for one in sent.answers) > 0


RAW_EVENTS = [*stream("In ", "the ", "beginn\u00efng \u4e2d")]
RAW = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(
    b"%x\r\n%s\r\n" % (len(part), part) for part in (b"".join(RAW_EVENTS[:2]), *RAW_EVENTS[2:])
)


@given(cuts=st.lists(st.integers(1, len(RAW) - 1), unique=True).map(sorted))
def test_an_answer_reads_the_same_however_its_bytes_are_cut(cuts: list[int]):
    bounds = [*cuts, len(RAW)]
    pieces = [(10.0 + index, RAW[begin:end]) for index, (begin, end) in enumerate(zip([0, *cuts], bounds, strict=True))]
    read = module("serving.answer").read_answer(0.5, [*pieces, (99.0, b"0\r\n\r\n")], 10.0)
    assert (read.text, read.tokens, read.failure, read.due) == ("In the beginn\u00efng \u4e2d", 3, "", 0.5)
    lines_end = [RAW.index(line) + line.index(b"\n") for line in (*RAW_EVENTS[:3], DONE)]
    times = [float(next(index for index, bound in enumerate(bounds) if place < bound)) for place in lines_end]
    assert [*read.times, read.end] == times


@pytest.mark.parametrize(
    ("status", "events", "failure"),
    [
        (429, [b'{"error": {"message": "the queue is full"}}'], "429"),
        (503, [], "503"),
        (200, [*stream("a")[:1], event(error={"message": "the engine has stopped"})], "error in the stream"),
        (200, stream("a", "b")[:-1], "cut off"),
    ],
)
def test_what_is_no_whole_answer_is_counted_by_its_kind(status: int, events: list[bytes], failure: str):
    def every_second(number: int, body: dict[str, Any]) -> tuple[int, Sequence[bytes]]:
        return (200, stream("a", "b")) if body["prompt"][0] % 2 else (status, events)

    with serving(every_second) as server:
        sent = module("serving.sender").send(load(server, 4, clients=1))
    row = module("serving.figures").figures("scripted", [sent], 2)
    assert (row["answers"], row["failures"], row["short"]) == (2, {failure: 2}, 0)
    assert row["tokens_per_s"] == pytest.approx(4 / sent.seconds)


def test_a_server_that_is_gone_gives_no_answer():
    with Scripted(lambda number, body: (200, [])) as server:
        pass  # nobody listens at its port any more
    sent = module("serving.sender").send(load(server, 2, clients=2))
    assert [one.failure for one in sent.answers] == ["no answer"] * 2
    row = module("serving.figures").figures("gone", [sent], 2)
    assert row["ttft_ms"] == {"p50": None, "p99": None}
    assert row["tokens_per_s"] == 0


def test_figures_are_those_of_the_times():
    sent = module("serving.sender").Sent
    first = sent([answer(0.0, [0.1, 0.3, 0.4]), answer(1.0, [1.5, 1.6], failure="503")], 2.0, 0.1)
    second = sent([answer(1.0, [1.2, 1.5, 2.5], tokens=3), answer(0.5, [0.9])], 4.0, 0.2)
    row = module("serving.figures").figures("one", [first, second], 3)
    assert row["round_tokens_per_s"] == [1.5, 1.0]
    assert row["tokens_per_s"] == 1.25
    assert row["requests_per_s"] == statistics.median([0.5, 0.5])
    assert row["ttft_ms"]["p50"] == pytest.approx(statistics.median([100, 200, 400]))
    gaps = [200, 100, 300, 1000]
    assert row["gap_ms"]["p50"] == pytest.approx(statistics.median(gaps))
    assert row["gap_ms"]["p99"] == pytest.approx(statistics.quantiles(gaps, n=100, method="inclusive")[98])
    assert row["gap_ms"]["std"] == pytest.approx(statistics.pstdev(gaps))
    assert row["answer_ms"]["p50"] == pytest.approx(statistics.median([400, 1500, 400]))
    assert (row["answers"], row["short"], row["failures"]) == (3, 1, {"503": 1})
    assert row["client_cpu_share"] == pytest.approx(0.05)


def test_the_decode_rate_counts_only_while_all_decode():
    rate = module("serving.overhead").decode_rate
    early = answer(0.0, [0.0, 1.0, 2.0, 3.0])
    late = answer(0.0, [1.0, 1.5, 2.0, 2.5, 4.0])
    assert rate([early, late]) == (2 + 3) / (3.0 - 1.0)  # 2.0 and 3.0; 1.5, 2.0 and 2.5
    with pytest.raises(QpackError, match="--answer-tokens"):
        rate([early, answer(0.0, [5.0, 6.0])])
    with pytest.raises(QpackError, match="1 of 2 requests failed: 429"):
        rate([early, replace(late, failure="429")])


def test_a_quantile_lies_evenly_between_the_edges_of_what_came_since():
    registry = CollectorRegistry()
    metric = Histogram("seconds", "Some.", buckets=(1, 2, 4), registry=registry)
    read = module("serving.histogram").read_histogram
    metric.observe(0.5)
    before = read(generate_latest(registry), "seconds")
    for value, count in ((0.5, 10), (1.5, 20), (3, 10)):
        for _ in range(count):
            metric.observe(value)
    since = read(generate_latest(registry), "seconds") - before
    assert (since.count, since.mean) == (40, 65 / 40)
    # Worked by hand, as https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile has it.
    assert [since.quantile(q) for q in (0.5, 0.9, 1.0)] == [1.5, pytest.approx(3.2), 4.0]
    metric.observe(100)
    assert (read(generate_latest(registry), "seconds") - before).quantile(1.0) == 4.0
    with pytest.raises(QpackError, match="there is no metric minutes"):
        read(generate_latest(registry), "minutes")


def test_prompts_are_the_same_for_all_servers_and_others_in_every_round(tmp_path: Path):
    prompts = module("serving.prompts")
    one = prompts.random_prompts(4, 7, seed=3, turn=0)
    assert one == prompts.random_prompts(4, 7, seed=3, turn=0)
    assert {len(prompt) for prompt in one} == {7}
    assert not {*map(tuple, one)} & {*map(tuple, prompts.random_prompts(4, 7, seed=3, turn=1))}
    file = tmp_path / "prompts.txt"
    file.write_text("a\n\nb\nc\n", encoding="utf-8")
    assert [prompts.prompts_of(file, 2, turn=turn) for turn in range(3)] == [["a", "b"], ["c", "a"], ["b", "c"]]
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match="no line with text"):
        prompts.prompts_of(file, 2, turn=0)


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
    assert asked.items() <= one.bodies[0].items()
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


def state(pid: int) -> str:
    """As proc(5) has it: T is stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0]


def test_llama_server_gets_the_slots_and_the_threads_of_ours_and_stands_still_between_its_turns(tmp_path: Path):
    servers = module("serving.servers")
    shape = servers.Shape(slots=4, context=256, threads=2)
    with servers.llama(tmp_path / "q4.gguf", program(tmp_path / "llama-server"), shape) as server:
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
    bundle, servers, plan_of = tiny_bundle("tiny-qwen3"), module("serving.servers"), module("serving.plan").Plan
    booted = boot(bundle, "cpu", threads=1)
    ends = booted.bundle.manifest["model"]["eos_token_ids"]
    plan = plan_of(
        requests=8, prompt_tokens=20, answer_tokens=16, prompts=None, rate=None, clients=5, seed=0, end_ids=ends
    )
    shape = servers.Shape(slots=booted.engine.slots, context=booted.engine.context, threads=1)
    with servers.ours(bundle, shape, queue=8) as server, server.awake():
        asked = plan.load(server, 0)
        answers = module("serving.sender").send(asked).answers
    options = SamplingOptions(logit_bias=dict.fromkeys(ends, -100.0))
    for body, got in zip(asked.bodies, answers, strict=True):
        *_, made = generate(booted, body["prompt"], max_tokens=16, options=options)
        assert (got.failure, got.tokens, got.text) == ("", 16, made.text)


def test_a_bundle_is_served_checked_and_compared_with_its_executor(
    tiny_bundle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    command, waves = module("serve_load"), list[Any]()
    overhead = command.overhead

    def on_an_even_clock(*arguments: Any) -> dict[str, Any]:
        """The answers of a wave are the server's, their times those of a host that does nothing else."""
        *others, wave = arguments

        def timed(number: int) -> Any:
            waves.append(wave(number))
            return replace(waves[-1], answers=[replace(one, times=[0.0, 0.5, 1.0]) for one in waves[-1].answers])

        return overhead(*others, timed)

    monkeypatch.setattr(command, "overhead", on_an_even_clock)
    arguments = "--check-determinism --overhead --requests 6 --rate 50 --rounds 1 --prompt-tokens 20 --answer-tokens 24"
    ran = run(tiny_bundle("tiny-qwen3_5"), *arguments.split(), "--threads", 1, "--format", "json")
    assert ran.exit_code == 0, ran.stderr
    report = json.loads(ran.stdout)
    (row,) = report["rows"]
    assert (row["answers"], row["short"], row["failures"], report["same_answers"]) == (6, 0, {}, True)
    assert 0 < row["ttft_ms"]["p50"] <= row["answer_ms"]["p50"]
    (wave,) = waves
    assert [one.tokens for one in wave.answers] == [24] * 4
    cost = report["overhead"]
    assert (cost["batch"], cost["context"]) == (4, 20 + 12 - 16)
    assert cost["server_tokens_per_s"] == 8.0
    assert cost["share"] == 8.0 / cost["executor_tokens_per_s"]
    assert 4 + 23 <= cost["steps"] <= 4 * 24  # prompts, and decode steps that took one to four sequences
    assert cost["host_ms"]["mean"] > 0
