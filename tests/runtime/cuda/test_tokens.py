"""The CUDA executor gives the reference executor's tokens: real host code, real tables, interpreted kernels.

Two sequences share a step, beside padding, in memory that holds garbage. Behind every step the logits are compared,
then the tokens: with float32 they are equal, with bfloat16 where the reference's best two logits are further apart than
the tolerance. And whatever the logits are, the token must be the one that the reference draws from them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_host import Machine, interpreted, machine
from qpack_runtime.engine import Choice, Engine
from qpack_runtime.reference.executor import ReferenceExecutor
from qpack_runtime.reference.sampling import sample
from qpack_runtime.sampling_options import SamplingOptions

SLOTS = 4
GREEDY = SamplingOptions(logprobs=True)
DRAWN = SamplingOptions(
    temperature=0.9, top_k=20, top_p=0.95, repetition_penalty=1.2, presence_penalty=0.1, seed=7, logit_bias={5: 2.0},
    logprobs=True,
)  # fmt: skip
TOLERANCE = {"float32": 2e-4, "bfloat16": 0.15}  # of logits, whose largest are about 10


@dataclass(frozen=True)
class Step:
    bucket: str
    take: Callable[[Engine], list[Choice]]
    greedy: int | None  # the row of the sequence that is decoded greedily


# Prompts of two chunks, the second padded, and of one token; then batches with and without padding.
STEPS = [
    Step("prefill-t4-c64", lambda engine: [engine.prefill(2, [41, 7, 300, 12, 9, 77], DRAWN)], None),
    Step("prefill-t1-c64", lambda engine: [engine.prefill(0, [33], GREEDY)], 0),
    Step("decode-b4-c64", lambda engine: engine.decode([2, 0]), 1),
    Step("decode-b1-c64", lambda engine: engine.decode([0]), 0),
    Step("decode-b4-c64", lambda engine: engine.decode([0, 2]), 0),
]


def drawn_by_the_reference(booted: Machine, bucket: str) -> dict[str, np.ndarray]:
    """What the reference's `sample` makes of the logits, tables and counts that the device holds behind a step."""
    kind = "decode" if bucket.startswith("decode") else "prefill"
    (instruction,) = (one for one in booted.bundle.programs[kind].code if one.op == "sample")
    operands: Any = {operand.name: booted.view(name, bucket).copy() for operand, name in instruction.operands()}
    sample(**operands, vocab=int(instruction.attrs["vocab"]))
    return operands


@dataclass(frozen=True)
class Way:
    """How the executor is run: nothing of this may show."""

    dtype: str
    capture: bool
    eager: bool
    backwards: bool


WAYS = [
    Way("float32", capture=False, eager=False, backwards=False),
    Way("bfloat16", capture=True, eager=True, backwards=True),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.dtype)
@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-qwen3_5", "random qwen2"])
def test_tokens_are_those_of_the_reference(
    stub_library: Path, cuda_bundle: Callable[[str, str], Path], tmp_path: Path, model: str, way: Way
):
    folder = cuda_bundle(model, way.dtype)
    hook = interpreted(folder, backwards=way.backwards)
    with machine(stub_library, folder, tmp_path / "log", hook=hook, eager=way.eager, capture=way.capture) as booted:
        for arena in ("state", "work"):
            booted.memory(arena)[:] = 0xFF  # NaN as a number, -1 as an index
        executor = ReferenceExecutor(booted.bundle)
        reference = Engine(executor, booted.bundle.manifest)
        for step in STEPS:
            got, wanted = step.take(booted.engine), step.take(reference)
            assert booted.engine.runs == reference.runs
            compare(booted, executor, step, way.dtype, got, wanted)
            for name in ("slot_token", "slot_position"):  # go on from the same tokens
                booted.view(name, step.bucket)[:SLOTS] = executor.state(name)[:SLOTS]
        for name, slot, line in lines_of_state(booted):
            assert slot in (0, 2, SLOTS) or (line == 0xFF).all(), f"{name} of slot {slot} was written"


def compare(
    booted: Machine, executor: ReferenceExecutor, step: Step, dtype: str, got: list[Choice], wanted: list[Choice]
) -> None:
    logits, expected = booted.view("logits", step.bucket), executor.io(step.bucket)["logits"]
    again = drawn_by_the_reference(booted, step.bucket)
    tolerance = TOLERANCE[dtype]
    for row, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        np.testing.assert_allclose(logits[row], expected[row], atol=tolerance, rtol=0)
        assert mine.status == theirs.status == 0
        second, first = np.sort(expected[row])[-2:]
        if dtype == "float32" or (row == step.greedy and first - second > 2 * tolerance):
            assert mine.token == theirs.token
        if mine.token == theirs.token:
            assert abs(mine.logprob - theirs.logprob) < 2 * tolerance
        assert mine.token == again["ids"][row]
        np.testing.assert_array_equal(booted.view("top_ids", step.bucket)[row], again["top_ids"][row])


def lines_of_state(booted: Machine) -> Iterator[tuple[str, int, np.ndarray]]:
    """What the state holds for each slot, as bytes: name of the buffer, slot, line."""
    context = booted.bundle.manifest["context"]
    for name, buffer in booted.bundle.manifest["buffers"].items():
        if buffer["arena"] == "state" and not name.startswith("slot_"):
            array = booted.view(name, STEPS[-1].bucket)
            lines = 1 if len(array) == SLOTS + 1 else context
            for slot in range(SLOTS):
                yield name, slot, array[slot * lines : (slot + 1) * lines].view(np.uint8)
