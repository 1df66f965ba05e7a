"""Which bucket runs, and what the host refuses before a program could be harmed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors import host_executor
from qpack_runtime.boot import Booted, Device, boot
from qpack_runtime.generate import generate, require_token
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.errors import FitError, QpackError, UsageError


@pytest.fixture(scope="module", params=["reference", "cpu"])
def booted(tiny_bundle: Callable[[str], Path], request: pytest.FixtureRequest) -> Booted:
    """Buckets: batches 1 and 4, contexts 64 and 128, prefills 1, 16 and 64; four slots."""
    return boot(tiny_bundle("tiny-qwen3_5"), request.param)


def tokens_of(booted: Booted, prompt: list[int], count: int, **options: Any) -> list[int]:
    return list(generate(booted, prompt, max_tokens=count, options=SamplingOptions(**options)))[-1].output_ids


@given(length=st.integers(1, 1000))
def test_chunks_are_the_prompt(booted: Booted, length: int):
    chunks = list(booted.engine.chunks(length))
    assert sum(chunks) == length
    assert all(0 < chunk <= 64 for chunk in chunks)


@pytest.mark.parametrize(
    ("prompt", "bucket"),
    [(1, "prefill-t1-c64"), (2, "prefill-t16-c64"), (16, "prefill-t16-c64"), (17, "prefill-t64-c64")],
)
def test_the_smallest_bucket_that_fits_runs(booted: Booted, prompt: int, bucket: str):
    booted.engine.runs.clear()
    booted.engine.prefill(0, [5] * prompt)
    assert dict(booted.engine.runs) == {bucket: 1}


def test_a_longer_context_is_used_only_when_positions_need_it(booted: Booted):
    booted.engine.prefill(0, [5] * 62)
    booted.engine.runs.clear()
    for _ in range(4):
        booted.engine.decode([0])
    assert dict(booted.engine.runs) == {"decode-b1-c64": 2, "decode-b1-c128": 2}


def test_three_sequences_run_in_the_bucket_of_four(booted: Booted):
    for slot in (0, 1, 3):
        booted.engine.prefill(slot, [slot + 1])
    booted.engine.runs.clear()
    assert len(booted.engine.decode([3, 0, 1])) == 3
    assert dict(booted.engine.runs) == {"decode-b4-c64": 1}


def test_a_slot_may_not_run_twice_in_a_step(booted: Booted):
    with pytest.raises(UsageError, match="not distinct"):
        booted.engine.decode([1, 1])


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(booted: Booted):
    with pytest.raises(FitError, match="128 tokens, the bundle's context is 128"):
        booted.engine.prefill(0, [5] * 128)


@pytest.mark.parametrize("token", [-1, 512, 10**9])
def test_an_id_outside_the_vocabulary_never_reaches_a_program(booted: Booted, token: int):
    with pytest.raises(UsageError, match=str(token)):
        booted.engine.prefill(0, [5, token])


def test_an_empty_prompt_is_refused(booted: Booted):
    with pytest.raises(UsageError, match="no tokens"):
        booted.engine.prefill(0, [])


def test_the_answer_ends_where_the_context_does(booted: Booted):
    assert len(tokens_of(booted, [5] * 120, 1000)) == 8


def test_the_answer_ends_at_an_end_token(booted: Booted):
    free = tokens_of(booted, [5, 6, 7], 10)
    booted.bundle.manifest["model"]["eos_token_ids"].append(free[4])
    try:
        generations = list(generate(booted, [5, 6, 7], max_tokens=10))
    finally:
        booted.bundle.manifest["model"]["eos_token_ids"].pop()
    assert generations[-1].finish_reason == "stop"
    assert generations[-1].output_ids == free[: free.index(free[4]) + 1]


def test_a_seed_gives_the_same_tokens_and_another_seed_others(booted: Booted):
    prompt = [5, 6, 7]
    first = tokens_of(booted, prompt, 20, temperature=1.0, seed=3)
    assert tokens_of(booted, prompt, 20, temperature=1.0, seed=3) == first
    assert tokens_of(booted, prompt, 20, temperature=1.0, seed=4) != first


def test_a_seed_gives_the_same_tokens_whatever_runs_beside_it(booted: Booted):
    prompt, options = [5, 6, 7], SamplingOptions(temperature=0.8, top_k=40, top_p=0.9, seed=11)
    alone = tokens_of(booted, prompt, 12, temperature=0.8, top_k=40, top_p=0.9, seed=11)
    booted.engine.prefill(3, [9] * 20, SamplingOptions(temperature=2.0, seed=1))
    booted.engine.prefill(0, [8], SamplingOptions())
    tokens = [booted.engine.prefill(2, prompt, options).token]
    while len(tokens) < 12:
        tokens.append(booted.engine.decode([3, 2, 0])[1].token)
    assert tokens == alone


def test_repetition_is_counted_over_prompt_and_output(booted: Booted):
    prompt = booted.tokenizer.encode("And the king said unto the people").ids
    plain = tokens_of(booted, prompt, 30)
    penalised = tokens_of(booted, prompt, 30, repetition_penalty=1e6)
    assert len(set(plain)) < 30
    assert len(set(penalised)) == 30
    assert not set(penalised) & set(prompt)


def test_a_reused_slot_forgets_the_sequence_before(booted: Booted):
    first = tokens_of(booted, [5, 6, 7], 10, repetition_penalty=1.5)
    tokens_of(booted, [9] * 50, 10)
    assert tokens_of(booted, [5, 6, 7], 10, repetition_penalty=1.5) == first


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_logits_that_are_not_finite_end_the_sequence_with_an_error(tiny_bundle: Callable[[str], Path], device: Device):
    broken = boot(tiny_bundle("tiny-qwen3_5"), device)
    executor = host_executor(broken)
    executor.state("slot_token")[:] = 1
    choice = broken.engine.prefill(0, [5])
    assert choice.status == 0
    for name in ("3.attn.k", "3.attn.v"):
        executor.state(name)[:] = float("nan")
    with pytest.raises(QpackError, match="not finite"):
        require_token(broken.engine.decode([0])[0])
    assert executor.state("slot_position")[0] == 1  # the row did not advance
