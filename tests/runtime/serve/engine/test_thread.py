"""The engine thread: what it boots, what it delivers, and that nobody waits for it when it is gone."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from engine_server import EngineServer
from fake_engine import END, VOCAB, FakeEngine, FakeExecutor, FakeTokenBytes, alone
from qpack_runtime.sampling_options import SamplingOptions
from qpack_runtime.serve.engine.job import Failed, Finished, Job, Piece, Started
from qpack_schemas.errors import QpackError


def server_on(engine: FakeEngine) -> EngineServer:
    """An engine thread on a fake engine."""
    rows = {"prefill": engine.chunk_sizes[-1], "decode": engine.rows}
    manifest = {
        "model": {"eos_token_ids": [END]},
        "buckets": [{"name": name, "rows": count} for name, count in rows.items()],
        "capture_order": list(rows),
    }
    bundle = SimpleNamespace(manifest=manifest)
    return EngineServer(SimpleNamespace(engine=engine, token_bytes=FakeTokenBytes(), bundle=bundle, device="cpu"))


def job(prompt: list[int], most: int, seed: int = 0, **fields) -> Job:
    return Job(prompt, SamplingOptions(seed=seed), most, lambda event: None, **fields)


def long_job(prompt: list[int], most: int) -> Job:
    return job(prompt, most, next(seed for seed in range(10_000) if END not in alone(prompt, seed, most)))


class Pause:
    """Holds an engine at its next step from the `steps`th on until it is let go."""

    def __init__(self, engine: FakeEngine, steps: int = 10):
        self.let_go = threading.Event()
        engine.before_launch = lambda: len(engine.steps) < steps or self.let_go.wait()


@pytest.fixture(params=[False, True], ids=["in step", "ahead"])
def engine(request: pytest.FixtureRequest) -> FakeEngine:
    return FakeEngine(executor=FakeExecutor(lookahead=request.param))


def test_many_jobs_from_many_threads_get_what_each_gets_alone(engine: FakeEngine):
    server = server_on(engine)
    crowds = [[job([1 + i, j], 20, seed=i * j) for j in range(25)] for i in range(8)]
    threads = [threading.Thread(target=server.submit, args=crowd) for crowd in crowds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jobs = [one for crowd in crowds for one in crowd]
    server.over(*jobs)
    server.stop()
    for one in jobs:
        assert server.output(one) == alone(one.prompt, one.options.seed, one.max_tokens)
        assert isinstance(server.events[one][0], Started)
    assert server.failure is None


def test_what_a_step_gave_comes_in_one_batch(engine: FakeEngine):
    server = server_on(engine)
    jobs = [long_job([1, i], 30) for i in range(4)]
    server.submit(*jobs)
    server.over(*jobs)
    server.stop()
    pieces = [sum(isinstance(event, Piece) for _, event in batch) for batch in server.batches]
    assert max(pieces) == 4
    assert len(server.batches) <= len(engine.steps) + 2  # a start and an end beside them


def test_a_cancelled_job_fails_and_gives_its_slot_to_the_next(engine: FakeEngine):
    engine.slots = 1
    server, pause = server_on(engine), Pause(engine)
    first, second = long_job([1, 2], 100), job([3], 5)
    server.submit(first, second)
    server.begun(first)
    server.thread.cancel([first], "disconnect", QpackError("the client has left"))
    pause.let_go.set()
    server.over(first, second)
    server.stop()
    last = server.events[first][-1]
    assert isinstance(last, Failed)
    assert last.reason == "disconnect"
    assert server.output(second) == alone([3], 0, 5)


def test_cancelling_what_is_over_does_nothing(engine: FakeEngine):
    server = server_on(engine)
    one = job([1], 3)
    server.submit(one)
    server.over(one)
    server.thread.cancel([one], "timeout", QpackError("too late"))
    server.stop()
    assert isinstance(server.events[one][-1], Finished)


def test_an_error_of_the_engine_fails_every_job_and_ends_the_thread(engine: FakeEngine):
    server = server_on(engine)
    jobs = [long_job([1, i], 100) for i in range(6)]  # two of them wait

    def fail() -> None:
        if len(engine.steps) > 20:
            raise RuntimeError("a kernel was not launched")

    engine.before_launch = fail
    server.submit(*jobs)
    server.ended.wait()
    assert isinstance(server.failure, RuntimeError)
    assert server.metrics.registry.get_sample_value("qpack_graph_replay_failures_total") == 1
    assert all(isinstance(server.events[one][-1], Failed) for one in jobs)


def test_a_boot_that_fails_is_told():
    def boot():
        raise QpackError("the bundle is damaged")

    server = EngineServer(None, boot)
    server.ended.wait()
    assert isinstance(server.failure, QpackError)


def test_stopping_fails_what_is_there_and_is_no_failure_itself(engine: FakeEngine):
    server, pause = server_on(engine), Pause(engine)
    one = long_job([1], 100)
    server.submit(one)
    server.begun(one)
    server.thread.stop(QpackError("the test is over"))
    pause.let_go.set()
    server.ended.wait()
    last = server.events[one][-1]
    assert server.failure is None
    assert isinstance(last, Failed)
    assert last.reason == "drain"


class Even:
    """Allows even ids and END; sees each token before the next is chosen."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def mask(self, bits: np.ndarray) -> None:
        for token in [*range(0, VOCAB, 2), END]:
            bits[token >> 5] |= np.array(1 << (token & 31), np.uint32).view(np.int32)

    def accept(self, token: int) -> None:
        self.accepted.append(token)


def test_a_grammar_masks_every_choice_and_sees_every_token(engine: FakeEngine):
    server = server_on(engine)
    one, other = job([1, 2], 20, grammar=Even()), long_job([5], 60)
    server.submit(one, other)
    server.over(one, other)
    server.stop()
    output = server.output(one)
    assert all(token % 2 == 0 or token == END for token in output)
    assert one.grammar is not None
    assert one.grammar.accepted == output  # type: ignore[attr-defined]
    assert server.output(other) == alone([5], other.options.seed, 60)


def test_a_grammar_that_gives_up_fails_its_own_job_only(engine: FakeEngine):
    class Broken(Even):
        def accept(self, token: int) -> None:
            raise QpackError("the grammar is too complex")

    server = server_on(engine)
    one, other = job([1, 2], 20, grammar=Broken()), long_job([5], 30)
    server.submit(one, other)
    server.over(one, other)
    server.stop()
    assert isinstance(server.events[one][-1], Failed)
    assert server.output(other) == alone([5], other.options.seed, 30)


def test_steps_rows_and_tokens_are_counted(engine: FakeEngine):
    server = server_on(engine)
    jobs = [long_job([1, i], 10) for i in range(4)]
    server.submit(*jobs)
    server.over(*jobs)
    server.stop()
    value = server.metrics.registry.get_sample_value
    decodes = sum(kind == "decode" for kind, _, _ in engine.steps)
    assert value("qpack_steps_total", {"bucket": "decode"}) == decodes
    assert value("qpack_generation_tokens_total") == 40
    assert value("qpack_prompt_tokens_total") == 8
    assert value("qpack_time_to_first_token_seconds_count") == 4
    assert value("qpack_time_per_output_token_seconds_count") == 36
    assert value("qpack_step_rows_total", {"kind": "live"}) == sum(rows for _, _, rows in engine.steps)
