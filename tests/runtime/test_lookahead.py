"""An executor that computes as late as it may, and one that computes at once, give the same tokens and positions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from late_executor import LateExecutor
from qpack_runtime.boot import Booted, boot
from qpack_runtime.engine import Engine
from qpack_runtime.generate import generate
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.errors import QpackError


@pytest.fixture(scope="module")
def booted(tiny_bundle: Callable[[str], Path]) -> Booted:
    return boot(tiny_bundle("tiny-qwen3_5"), "reference")


@pytest.fixture(scope="module")
def ahead(booted: Booted) -> Booted:
    executor = LateExecutor(booted.bundle)
    return replace(booted, executor=executor, engine=Engine(executor, booted.bundle.manifest))


@settings(max_examples=15)
@given(
    prompt=st.lists(st.integers(1, 500), min_size=1, max_size=100),
    count=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 0.9]),
    penalty=st.sampled_from([1.0, 1.4]),
)
def test_tokens_and_positions_are_the_same(
    booted: Booted, ahead: Booted, prompt: list[int], count: int, temperature: float, penalty: float
):
    options = SamplingOptions(temperature=temperature, repetition_penalty=penalty, seed=count)
    plain, *_ = reversed(list(generate(booted, prompt, max_tokens=count, options=options)))
    late, *_ = reversed(list(generate(ahead, prompt, max_tokens=count, options=options)))
    assert (late.output_ids, late.text, late.finish_reason) == (plain.output_ids, plain.text, plain.finish_reason)
    assert ahead.engine.executor.waiting == 0  # type: ignore
    assert_positions(ahead)


def assert_positions(booted: Booted) -> None:
    """The host's count is the device's."""
    on_device = booted.executor.reference.state("slot_position")  # type: ignore
    assert booted.engine.positions[0] == on_device[0]


def test_a_step_is_under_way_while_a_token_is_used(ahead: Booted):
    executor = ahead.engine.executor
    waiting = [executor.waiting for _ in generate(ahead, [5, 6], max_tokens=6)]  # type: ignore
    assert waiting == [1, 1, 1, 1, 1, 0]


def test_the_last_token_of_the_context_launches_nothing_behind_it(ahead: Booted):
    ahead.engine.runs.clear()
    (*_, last) = generate(ahead, [5] * 120, max_tokens=1000)
    assert len(last.output_ids) == 8
    assert sum(n for name, n in ahead.engine.runs.items() if name.startswith("decode")) == 7


def test_the_step_beyond_an_end_token_is_dropped_and_the_slot_is_where_the_device_has_it(booted: Booted, ahead: Booted):
    (*_, free) = generate(booted, [5, 6, 7], max_tokens=10)
    manifest = booted.bundle.manifest
    manifest["model"]["eos_token_ids"].append(free.output_ids[4])
    try:
        (*_, stopped) = generate(ahead, [5, 6, 7], max_tokens=10)
        assert stopped.finish_reason == "stop"
        assert stopped.output_ids == free.output_ids[: free.output_ids.index(free.output_ids[4]) + 1]
        assert ahead.engine.executor.waiting == 0  # type: ignore
        assert_positions(ahead)
    finally:
        manifest["model"]["eos_token_ids"].pop()


def test_a_reader_that_leaves_early_leaves_nothing_under_way(ahead: Booted):
    generation = generate(ahead, [5, 6, 7], max_tokens=10)
    next(generation)
    generation.close()
    assert ahead.engine.executor.waiting == 0  # type: ignore
    assert_positions(ahead)


def test_steps_that_choose_nothing_leave_the_position_where_it_was(booted: Booted):
    executor = LateExecutor(booted.bundle)
    late = replace(booted, executor=executor, engine=Engine(executor, booted.bundle.manifest))  # type: ignore
    generation = generate(late, [5, 6, 7], max_tokens=10)
    next(generation)
    for name in ("3.attn.k", "3.attn.v"):
        executor.reference.state(name)[:] = float("nan")
    with pytest.raises(QpackError, match="not finite"):
        list(generation)
    assert_positions(late)
    assert late.engine.positions[0] == 3


def test_sequences_of_a_batch_keep_their_own_options(booted: Booted):
    """A seat is taken while steps of others are under way: they must not see its tables."""
    prompts = {0: [5, 6, 7], 1: [9] * 20, 2: [30, 31]}
    options = {slot: SamplingOptions(temperature=0.8, seed=slot, top_k=20 + slot) for slot in prompts}
    alone = {
        slot: next(iter(reversed(list(generate(booted, prompt, max_tokens=6, options=options[slot]))))).output_ids
        for slot, prompt in prompts.items()
    }
    engine = Engine(LateExecutor(booted.bundle), booted.bundle.manifest)
    pending = {slot: engine.launch_prefill(slot, prompt, options[slot]) for slot, prompt in prompts.items()}
    steps = [engine.launch_decode([2, 0, 1]) for _ in range(5)]
    tokens = {slot: [engine.read(one)[0].token] for slot, one in pending.items()}
    for step in steps:
        for slot, choice in zip([2, 0, 1], engine.read(step), strict=True):
            tokens[slot].append(choice.token)
    assert tokens == alone
