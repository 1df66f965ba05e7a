"""The CUDA executor gives the reference executor's tokens: real host code, real tables, interpreted kernels.

Two sequences share a step, beside padding, in memory that holds garbage. Behind every step the logits are compared,
then the tokens: with float32 they are equal, with bfloat16 where the reference's best two logits are further apart than
the tolerance. And whatever the logits are, the token must be the one that the reference draws from them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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

Step = tuple[str, Callable[[Engine], list[Choice]]]
# Prompts of two chunks, the second padded, and of one token; then batches with and without padding.
STEPS: list[Step] = [
    ("prefill-t4-c64", lambda engine: [engine.prefill(2, [41, 7, 300, 12, 9, 77], DRAWN)]),
    ("prefill-t1-c64", lambda engine: [engine.prefill(0, [33], GREEDY)]),
    ("decode-b4-c64", lambda engine: engine.decode([2, 0])),
    ("decode-b1-c64", lambda engine: engine.decode([0])),
    ("decode-b4-c64", lambda engine: engine.decode([0, 2])),
]


@contextmanager
def garbage_machine(library: Path, folder: Path, log: Path, *, backwards: bool, **options: bool) -> Iterator[Machine]:
    """Booted on memory in which every 16-bit and 32-bit word is NaN, or -1."""
    with machine(library, folder, log, hook=interpreted(folder, backwards=backwards), **options) as booted:
        for arena in ("state", "work"):
            booted.memory(arena)[:] = 0xFF
        yield booted


def drawn_by_the_reference(booted: Machine, bucket: str) -> dict[str, np.ndarray]:
    """What the reference's `sample` makes of the logits, tables and counts that the device holds behind a step."""
    kind = "decode" if bucket.startswith("decode") else "prefill"
    (instruction,) = (one for one in booted.bundle.programs[kind].code if one.op == "sample")
    operands = {operand.name: booted.view(name, bucket).copy() for operand, name in instruction.operands()}
    sample(**operands, **instruction.attrs)
    return operands


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float32", {"backwards": False, "capture": False, "eager": False}),
        ("bfloat16", {"backwards": True, "capture": True, "eager": True}),
    ],
)
@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-qwen3_5", "random qwen2"])
def test_tokens_are_those_of_the_reference(
    stub_library: Path, cuda_bundle: Callable[[str, str], Path], tmp_path: Path, model: str, dtype: str, options: dict[str, bool],
):  # fmt: skip
    with garbage_machine(stub_library, cuda_bundle(model, dtype), tmp_path / "log", **options) as booted:
        executor = ReferenceExecutor(booted.bundle)
        reference = Engine(executor, booted.bundle.manifest)
        for number, (bucket, step) in enumerate(STEPS):
            got, wanted = step(booted.engine), step(reference)
            assert booted.engine.runs == reference.runs
            logits, expected = booted.view("logits", bucket), executor.io(bucket)["logits"]
            best = np.sort(expected, axis=-1)
            for row, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
                what = f"step {number}, row {row}"
                np.testing.assert_allclose(logits[row], expected[row], atol=TOLERANCE[dtype], rtol=0, err_msg=what)
                clear = best[row, -1] - best[row, -2] > 2 * TOLERANCE[dtype]
                greedy = (row == 0 if number != 2 else row == 1) and number > 0
                assert mine.status == theirs.status == 0
                if dtype == "float32" or (greedy and clear):
                    assert mine.token == theirs.token, what
                if mine.token == theirs.token:
                    assert abs(mine.logprob - theirs.logprob) < 2 * TOLERANCE[dtype]
            again, live = drawn_by_the_reference(booted, bucket), len(got)
            assert again["ids"][:live].tolist() == [choice.token for choice in got]
            np.testing.assert_array_equal(again["top_ids"][:live], booted.view("top_ids", bucket)[:live])
            for name in ("slot_token", "slot_position"):  # go on from the same tokens
                booted.view(name, bucket)[:SLOTS] = executor.state(name)[:SLOTS]
        for name, buffer in booted.bundle.manifest["buffers"].items():
            if buffer["arena"] == "state" and name != "counts" and not name.startswith("slot_"):
                untouched = booted.view(name, bucket).reshape(-1).view(np.uint8)
                line = len(untouched) // (SLOTS + 1) if buffer["shape"][0] == SLOTS + 1 else None
                context = booted.bundle.manifest["context"]
                line = line or len(untouched) // buffer["shape"][0] * context
                for slot in (1, 3):
                    assert (untouched[slot * line : (slot + 1) * line] == 0xFF).all(), f"{name} of slot {slot}"
