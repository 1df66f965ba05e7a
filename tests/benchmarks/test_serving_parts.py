"""The parts of benchmarks/serve_load.py: when requests are sent, how answers are read, what is made of their times."""

import math
import socket
import statistics
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from qpack_schemas.errors import InputError, QpackError
from scripted_server import DONE, Scripted, event, serving, stream
from serving.answer import Answer, read_answer
from serving.arrivals import Load, poisson
from serving.figures import figures
from serving.histogram import read_histogram
from serving.overhead import decode_phase
from serving.prompts import prompts_of, random_prompts
from serving.sender import Sent, send


def load(server: Scripted, count: int, **how: Any) -> Any:
    bodies = [{"prompt": [number]} for number in range(count)]
    return Load("127.0.0.1", server.server_port, bodies, **how)


def answer(due: float = 0.0, times: Sequence[float] = (), **fields: Any) -> Any:
    values = {"end": times[-1] if times else due, "tokens": len(times), "failure": "", **fields}
    return Answer(due, times=list(times), **values)


def test_arrivals_are_a_poisson_process_and_the_same_for_a_seed():
    rate, count = 4.0, 20_000
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
        sent = send(load(server, 10, clients=3))
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
        sent = send(load(server, 8, due=due))
    assert [one.due for one in sent.answers] == due
    assert [one.failure for one in sent.answers] == [""] * 8
    assert all(one.times[0] >= due[-1] for one in sent.answers)


def test_each_answer_is_its_requests():
    with serving(lambda number, body: (200, stream(*["token "] * body["prompt"][0], "end"))) as server:
        sent = send(load(server, 6, clients=6))
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
    read = read_answer(0.5, [*pieces, (99.0, b"0\r\n\r\n")], 10.0)
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
        sent = send(load(server, 4, clients=1))
    row = figures("scripted", [sent], 2)
    assert (row["answers"], row["failures"], row["short"]) == (2, {failure: 2}, 0)
    assert row["tokens_per_s"] == pytest.approx(4 / sent.seconds)


def test_a_server_that_is_gone_gives_no_answer():
    with Scripted(lambda number, body: (200, [])) as server:
        pass
    with socket.socket() as held:  # nobody listens at its port any more, and nobody else gets it
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(server.server_address)
        sent = send(load(server, 2, clients=2))
    assert [one.failure for one in sent.answers] == ["no answer"] * 2
    row = figures("gone", [sent], 2)
    assert row["ttft_ms"] == {"p50": None, "p99": None}
    assert row["tokens_per_s"] == 0


def test_figures_are_those_of_the_times():
    first = Sent([answer(0.0, [0.1, 0.3, 0.4]), answer(1.0, [1.5, 1.6], failure="503")], 2.0, 0.1)
    second = Sent([answer(1.0, [1.2, 1.5, 2.5], tokens=3), answer(0.5, [0.9])], 4.0, 0.2)
    row = figures("one", [first, second], 3)
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
    early = answer(0.0, [0.0, 1.0, 2.0, 3.0])
    late = answer(0.0, [1.0, 1.5, 2.0, 2.5, 4.0])
    # Of the first the tokens 2 and 3, at 2.0 and 3.0; of the second 1 to 3, at 1.5, 2.0 and 2.5.
    assert decode_phase([early, late]) == ((2 + 3) / (3.0 - 1.0), statistics.mean([2, 3, 1, 2, 3]))
    with pytest.raises(QpackError, match="at no time did all slots decode"):
        decode_phase([early, answer(0.0, [5.0, 6.0])])
    with pytest.raises(QpackError, match="1 of 2 requests failed: 429"):
        decode_phase([early, replace(late, failure="429")])


def test_a_quantile_lies_evenly_between_the_edges_of_what_came_since():
    registry = CollectorRegistry()
    metric = Histogram("seconds", "Some.", buckets=(1, 2, 4), registry=registry)
    metric.observe(0.5)
    before = read_histogram(generate_latest(registry), "seconds")
    for value, count in ((0.5, 10), (1.5, 20), (3, 10)):
        for _ in range(count):
            metric.observe(value)
    since = read_histogram(generate_latest(registry), "seconds") - before
    assert (since.count, since.mean) == (40, 65 / 40)
    # Worked by hand, as https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile has it.
    assert [since.quantile(q) for q in (0.5, 0.9, 1.0)] == [1.5, pytest.approx(3.2), 4.0]
    metric.observe(100)
    assert (read_histogram(generate_latest(registry), "seconds") - before).quantile(1.0) == 4.0
    with pytest.raises(QpackError, match="there is no metric minutes"):
        read_histogram(generate_latest(registry), "minutes")


def test_prompts_are_the_same_for_all_servers_and_others_in_every_round(tmp_path: Path):
    one = random_prompts(4, 7, seed=3, turn=0)
    assert one == random_prompts(4, 7, seed=3, turn=0)
    assert {len(prompt) for prompt in one} == {7}
    assert not {*map(tuple, one)} & {*map(tuple, random_prompts(4, 7, seed=3, turn=1))}
    file = tmp_path / "prompts.txt"
    file.write_text("a\n\nb\nc\n", encoding="utf-8")
    assert [prompts_of(file, 2, turn=turn) for turn in range(3)] == [["a", "b"], ["c", "a"], ["b", "c"]]
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match="no line with text"):
        prompts_of(file, 2, turn=0)
