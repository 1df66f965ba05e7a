"""What a row gets on the CUDA executor depends on its own inputs and its slot's state alone: bit for bit.

The cases are those of tests/runtime/test_row_independence.py, fewer and shorter, through the real host code and the
interpreted kernels: slots, batches, padding, wider buckets, longer contexts, cuts of the prompt, garbage in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cuda_host import Machine, interpreted, machine
from qpack_runtime.sampling_options import SamplingOptions

PROMPT = [41, 7, 300, 12, 9]
FOLLOWING = 77  # the token that is decoded behind the prompt, whatever was chosen
SCRATCH = 4


@dataclass(frozen=True)
class Run:
    """`cuts` are the lengths of the prompt's chunks, each run in a bucket of at least `rows` rows. The decode step is
    of the slots `batch` in this order; SCRATCH is padding."""

    slot: int = 0
    cuts: tuple[int, ...] = (4, 1)
    rows: int = 1
    batch: tuple[int, ...] = (0,)
    context: int = 64
    fill: int = 0xFF
    backwards: bool = False


CASES = {
    "the last of a padded batch": Run(slot=3, batch=(SCRATCH, SCRATCH, SCRATCH, 3), fill=0x7F, backwards=True),
    "beside a neighbour, in wide buckets of a long context": Run(
        slot=1, cuts=(1, 3, 1), rows=4, batch=(2, 1, SCRATCH, SCRATCH), context=512, fill=0
    ),
}


@pytest.fixture(scope="module", params=[("tiny-qwen3_5", "bfloat16"), ("random qwen2", "bfloat16")])
def folder(request: pytest.FixtureRequest, cuda_bundle: Callable[[str, str], Path]) -> Path:
    return cuda_bundle(*request.param)


@pytest.fixture(scope="module")
def plain(folder: Path, stub_library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return observe(stub_library, folder, tmp_path_factory.mktemp("plain") / "log", Run())


def observe(library: Path, folder: Path, log: Path, run: Run) -> dict[str, bytes]:
    """The logits behind the prompt and behind one more token, and all that the state holds for the slot."""
    with machine(library, folder, log, hook=interpreted(folder, backwards=run.backwards)) as booted:
        engine = booted.engine
        for arena in ("state", "work"):
            booted.memory(arena)[:] = run.fill
        for slot in set(run.batch) - {run.slot, SCRATCH}:
            engine.prefill(slot, [7 * slot])
        engine.admit(run.slot, SamplingOptions())
        seen, start = {}, 0
        for cut in run.cuts:
            booted.memory("work")[:] = run.fill
            logits = prefill(booted, run, start, PROMPT[start : start + cut])
            start += cut
        seen["logits of the prompt"] = logits.tobytes()
        bucket = f"decode-b{len(run.batch)}-c{run.context}"
        booted.view("slot_token", bucket)[run.slot] = FOLLOWING
        booted.memory("work")[:] = run.fill
        booted.executor.io(bucket)["slots"][:] = run.batch
        booted.executor.read(booted.executor.launch(bucket))
        seen["logits of the next token"] = booted.view("logits", bucket)[run.batch.index(run.slot)].tobytes()
        seen["state"] = slot_bytes(booted, bucket, run.slot, len(PROMPT) + 1)
    return seen


def prefill(booted: Machine, run: Run, start: int, tokens: list[int]) -> np.ndarray:
    bucket = f"prefill-t{min(n for n in (1, 4) if n >= max(run.rows, len(tokens)))}-c{run.context}"
    io = booted.executor.io(bucket)
    io["prompt"][:] = -(2**31)  # what lies behind the prompt is never read
    io["prompt"][: len(tokens)] = tokens
    io["slot"][0], io["start"][0], io["length"][0] = run.slot, start, len(tokens)
    booted.executor.read(booted.executor.launch(bucket))
    return booted.view("logits", bucket)[0].copy()


def slot_bytes(booted: Machine, bucket: str, slot: int, length: int) -> bytes:
    """Everything the state holds for one slot at `length` positions, but for the token it chose last."""
    parts: list[bytes] = []
    for name, buffer in booted.bundle.manifest["buffers"].items():
        if buffer["arena"] != "state" or name == "slot_token":
            continue
        array = booted.view(name, bucket)
        first = slot * booted.bundle.manifest["context"]
        parts.append((array[slot] if len(array) == SCRATCH + 1 else array[first : first + length]).tobytes())
    return b"".join(parts)


@pytest.mark.parametrize("case", CASES)
def test_a_row_gets_the_same_bits(stub_library: Path, folder: Path, tmp_path: Path, plain: dict[str, bytes], case: str):
    assert observe(stub_library, folder, tmp_path / "log", CASES[case]) == plain
