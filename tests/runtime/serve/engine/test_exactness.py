"""The same request and seed get the same tokens alone and in any load, on real executors: what `generate` gives."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_server import EngineServer
from late_executor import LateExecutor
from qpack_runtime.boot import Booted, boot
from qpack_runtime.engine import Engine
from qpack_runtime.generate import generate
from qpack_runtime.sampling_options import SamplingOptions
from qpack_runtime.serve.engine.job import Job, Piece, Started

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 1.2, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"temperature": 0.7, "logit_bias": {5: 4.0, 17: -100.0}},
)
KINDS = ["cpu fast", "cpu exact", "reference", "late"]


@pytest.fixture(scope="module", params=["tiny-qwen3", "tiny-qwen3_5"])
def bundle(request: pytest.FixtureRequest, tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle(request.param)


@pytest.fixture(scope="module", params=KINDS)
def booted(request: pytest.FixtureRequest, bundle: Path) -> Booted:
    device, _, mode = request.param.partition(" ")
    if device == "late":
        made = boot(bundle, "reference")
        executor = LateExecutor(made.bundle)
        return replace(made, executor=executor, engine=Engine(executor, made.bundle.manifest))
    return boot(bundle, device, mode=mode or None, threads=1 if device == "cpu" else None)


def jobs_of(chance: random.Random, count: int) -> list[Job]:
    return [
        Job(
            [chance.randrange(1, 500) for _ in range(chance.randrange(1, 70))],
            SamplingOptions(seed=number, **chance.choice(OPTIONS)),
            chance.randrange(1, 20),
            lambda event: None,
            client=chance.choice("abc"),
            session=chance.choice([None, "s"]),
        )
        for number in range(count)
    ]


def alone(booted: Booted, job: Job) -> list[int]:
    return list(generate(booted, job.prompt, max_tokens=job.max_tokens, options=job.options))[-1].output_ids


def test_a_job_gets_in_a_load_what_it_gets_alone(booted: Booted):
    jobs = jobs_of(random.Random(7), 12 if booted.device == "reference" else 60)
    expected = [alone(booted, job) for job in jobs]
    server = EngineServer(booted)
    halves = [threading.Thread(target=server.submit, args=jobs[start::2]) for start in (0, 1)]
    for half in halves:
        half.start()
    for half in halves:
        half.join()
    server.over(*jobs)
    server.stop()
    assert [server.output(job) for job in jobs] == expected
    text = {job: "".join(e.text for e in server.events[job] if isinstance(e, Piece)) for job in jobs}
    assert any(text.values())


def test_a_conversation_that_goes_on_from_its_slot_gets_what_the_whole_prompt_gets_afresh(booted: Booted):
    """Also with recurrent state, which can't be rolled back and needn't be."""
    server, prompt = EngineServer(booted), [3, 14, 15, 92, 65]
    for turn in range(4):
        job = Job(list(prompt), SamplingOptions(temperature=0.8, seed=turn), 9, lambda event: None)
        server.submit(job)
        server.over(job)
        (start,) = [event for event in server.events[job] if isinstance(event, Started)]
        assert (start.cached > 0) == (turn > 0)
        prompt += [*server.output(job), 40 + turn, 50 + turn]
        assert len(prompt) < booted.engine.context
    server.stop()
    for job in server.events:
        assert server.output(job) == alone(booted, job)
