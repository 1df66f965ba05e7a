"""Runs of one prompt that must all give the same bits, however it is cut and wherever it sits. Executors are tested
with them, and so is that broken ones are found out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from executors import HostExecutor, passing_memory
from qpack_packager.serving import Options
from qpack_runtime.engine import Engine
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.bundle import Bundle

OPTIONS = Options(batches=(1, 2, 4), contexts=(64, 256), prefills=(1, 4, 16, 64, 256), slots=4)
SLOTS, SCRATCH = 4, 4
WHOLE = 256  # a chunk that holds any prompt
STEPS = 3  # behind the prompt


@dataclass(frozen=True)
class Run:
    """`cuts` are the lengths of the prompt's chunks, over and over, each run in a bucket of at least `rows` rows."""

    slot: int = 0
    cuts: tuple[int, ...] = (WHOLE,)
    rows: int = 1
    batch: tuple[int, ...] = (0,)  # slots of the decode steps, in order; SCRATCH is padding
    through_decode: bool = False  # the prompt token by token through the decode program


PLAIN = Run()
CASES = {
    "another slot": Run(slot=2, batch=(2,)),
    "a wider bucket": Run(rows=64),
    "chunks of 16, the last one padded": Run(cuts=(16,), rows=16),
    "one token at a time": Run(cuts=(1,)),
    "one token at a time in a padded bucket": Run(cuts=(1,), rows=4),
    "ragged cuts": Run(cuts=(3, 1, 16, 4, 13)),
    "last of a full batch": Run(slot=3, batch=(0, 1, 2, 3)),
    "between padding": Run(slot=1, batch=(SCRATCH, 1, SCRATCH, 2)),
    "through the decode program": Run(through_decode=True),
}


def prompt_of(bundle: Bundle, length: int) -> list[int]:
    rng = np.random.default_rng(5)
    return rng.integers(0, bundle.manifest["model"]["real_vocab_size"], length).tolist()


def observe(executor: HostExecutor, bundle: Bundle, run: Run, prompt: Sequence[int], seed: int = 0) -> dict[str, bytes]:
    """The logits behind the prompt and behind each further token, and all that the state holds for the slot
    afterwards. `seed` is of the garbage that memory holds before.

    AssertionError if a neighbour's state is touched, or if a logit is not finite: there would be no token, and the next
    step would go on from garbage."""
    garbage(executor, seed)
    engine = Engine(executor, bundle.manifest)
    neighbours = [slot for slot in run.batch if slot not in (run.slot, SCRATCH)]
    for slot in neighbours:
        assert engine.prefill(slot, [(7 * slot + i) % engine.vocab for i in range(9 + slot)]).status == 0
    seen: dict[str, bytes] = {}
    slot_token = executor.state("slot_token")
    beside = {slot: slot_bytes(bundle, executor, slot, engine.positions[slot]) for slot in neighbours}
    logits = np.empty(0)
    engine.admit(run.slot, SamplingOptions())
    if run.through_decode:
        executor.state("slot_position")[run.slot] = engine.positions[run.slot] = 0
        for token in prompt:
            slot_token[run.slot] = token
            logits = decode(engine, executor, (run.slot,), run.slot)
    else:
        start, cuts = 0, cycle(run.cuts)
        while start < len(prompt):
            chunk = prompt[start : start + next(cuts)]
            logits = prefill(engine, executor, run, start, chunk)
            start += len(chunk)
    seen["logits of the prompt"] = logits.tobytes()
    for slot, before in beside.items():
        assert slot_bytes(bundle, executor, slot, engine.positions[slot]) == before, f"slot {slot} was touched"
    for step in range(STEPS):
        slot_token[run.slot] = (11 * step + 3) % engine.vocab
        seen[f"logits of step {step}"] = decode(engine, executor, run.batch, run.slot).tobytes()
    seen["state"] = slot_bytes(bundle, executor, run.slot, len(prompt) + STEPS)
    return seen


def is_noticed(executors: Sequence[HostExecutor], bundle: Bundle, prompt: list[int]) -> bool:
    """Whether any case differs from the plain run, or touches another slot, or reads out of bounds. The executors, of
    one kind, take turns."""
    plain: dict[str, bytes] = {}
    for number, run in enumerate((PLAIN, *CASES.values())):
        try:
            seen = observe(executors[number % len(executors)], bundle, run, prompt, seed=number)
        except (AssertionError, IndexError):
            return True
        plain = plain or seen
        if seen != plain:
            return True
    return False


def garbage(executor: HostExecutor, seed: int) -> None:
    """Random bytes with many NaN patterns in all memory, as it may hold at boot."""
    rng = np.random.default_rng(seed)
    for memory in (executor.arenas.state, executor.arenas.io, *passing_memory(executor)):
        memory[:] = rng.integers(0, 256, memory.size, np.uint8)
        words = memory[: memory.size // 4 * 4].view(np.uint32)
        words[rng.random(words.size, np.float32) < 0.3] = 0x7FC07FC0  # NaN as float32 and twice as bfloat16


def poison(executor: HostExecutor) -> None:
    """Nothing of these holds anything between steps, and rows of padding may hold anything."""
    for memory in passing_memory(executor):
        memory.fill(0xFF)


def prefill(engine: Engine, executor: HostExecutor, run: Run, start: int, tokens: Sequence[int]) -> np.ndarray:
    rows = min(n for n in OPTIONS.prefills if n >= max(run.rows, len(tokens)))
    bucket = f"prefill-t{rows}-c256"
    io = executor.io(bucket)
    poison(executor)
    io["prompt"][:] = -(2**31)  # what lies behind the prompt is never read
    io["prompt"][: len(tokens)] = tokens
    io["slot"][0], io["start"][0], io["length"][0] = run.slot, start, len(tokens)
    executor.run(bucket)
    engine.positions[run.slot] = start + len(tokens)
    return finite(io["logits"][0])


def decode(engine: Engine, executor: HostExecutor, batch: Sequence[int], slot: int) -> np.ndarray:
    rows = min(n for n in OPTIONS.batches if n >= len(batch))
    position = engine.positions[slot]
    bucket = f"decode-b{rows}-c{256 if position % 2 or position >= 64 else 64}"
    io = executor.io(bucket)
    poison(executor)
    io["slots"][:] = [*batch, *[SCRATCH] * (rows - len(batch))]
    executor.run(bucket)
    for other in set(batch) - {SCRATCH}:
        engine.positions[other] += 1
    return finite(io["logits"][list(batch).index(slot)])


def finite(logits: np.ndarray) -> np.ndarray:
    assert np.isfinite(logits).all()
    return logits.copy()


def slot_bytes(bundle: Bundle, executor: HostExecutor, slot: int, length: int) -> bytes:
    """Everything the state holds for one slot at `length` positions; counts aside, which tell prompt from output."""
    parts: list[bytes] = []
    for name, buffer in bundle.manifest["buffers"].items():
        if buffer["arena"] != "state" or name in ("counts", "slot_token"):
            continue
        array = executor.state(name)
        first = slot * bundle.manifest["context"]
        parts.append((array[slot] if len(array) == SLOTS + 1 else array[first : first + length]).tobytes())
    return b"".join(parts)
