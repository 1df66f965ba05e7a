"""What a row gets depends on its own inputs and its slot's state alone: bit for bit, with garbage everywhere else.

A run is described by how the prompt is cut, which slot it sits in and what runs beside it; all runs must give the same
logits and leave the same state. The same check must catch bugs of the kinds that recurrent-state models are known for
(vllm#39064, sglang#30974, nano-vllm#258).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bundles import ASSETS, build_bundle
from checkpoints import random_checkpoint
from qpack_packager.serving import Options
from qpack_runtime.engine import Engine
from qpack_runtime.reference import instructions, mixers
from qpack_runtime.reference.executor import FUNCTIONS, ReferenceExecutor
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.bundle import Bundle, open_bundle

OPTIONS = Options(batches=(1, 2, 4), contexts=(64, 128), prefills=(1, 4, 16, 64), slots=4)
SLOTS, SCRATCH = 4, 4
LENGTH, STEPS = 37, 3


@dataclass(frozen=True)
class Run:
    """`cuts` are the lengths of the prompt's chunks, each run in a bucket of at least `rows` rows."""

    slot: int = 0
    cuts: tuple[int, ...] = (LENGTH,)
    rows: int = 1
    batch: tuple[int, ...] = (0,)  # slots of the decode steps, in order; SCRATCH is padding
    through_decode: bool = False  # the prompt token by token through the decode program


@pytest.fixture(scope="module", params=["tiny-qwen3_5", "tiny-qwen3", "random qwen2", "tiny-qwen3_5 in float32"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("rows")
    name, _, dtype = request.param.partition(" in ")
    model = random_checkpoint(folder / "model", "qwen2", hidden_size=192) if "random" in name else ASSETS / name
    return open_bundle(build_bundle(model, folder / "bundle", replace(OPTIONS, dtype=dtype or "bfloat16")))


def garbage(executor: ReferenceExecutor, seed: int) -> None:
    """Random bytes with many NaN patterns in every arena, as memory may hold at boot."""
    rng = np.random.default_rng(seed)
    for arena in (executor.arenas.state, executor.arenas.io, executor.arenas.work):
        arena[:] = rng.integers(0, 256, arena.size, np.uint8)
        words = arena.view(np.uint32)
        words[rng.random(words.size) < 0.3] = 0x7FC07FC0  # NaN as float32 and twice as bfloat16


def poison(executor: ReferenceExecutor) -> None:
    """Work holds nothing between steps, and rows of padding may hold anything."""
    executor.arenas.work[:] = 0xFF


def observe(bundle: Bundle, run: Run, prompt: Sequence[int], seed: int = 0) -> dict[str, bytes]:
    """The logits behind the prompt and behind each further token, and all that the state holds for the slot
    afterwards."""
    executor = ReferenceExecutor(bundle)
    garbage(executor, seed)
    engine = Engine(executor, bundle.manifest)
    neighbours = [slot for slot in run.batch if slot not in (run.slot, SCRATCH)]
    for slot in neighbours:
        engine.prefill(slot, [(7 * slot + i) % engine.vocab for i in range(9 + slot)])
    seen: dict[str, bytes] = {}
    slot_token = executor.state("slot_token")
    beside = {slot: slot_bytes(bundle, executor, slot, engine.positions[slot]) for slot in neighbours}
    if run.through_decode:
        executor.state("slot_position")[run.slot] = engine.positions[run.slot] = 0
        engine.admit(run.slot, SamplingOptions())
        for token in prompt:
            slot_token[run.slot] = token
            logits = decode(engine, executor, (run.slot,), run.slot)
    else:
        engine.admit(run.slot, SamplingOptions())
        start = 0
        for cut in run.cuts:
            poison(executor)
            logits = prefill(engine, executor, run, start, prompt[start : start + cut])
            start += cut
    seen["logits of the prompt"] = logits.tobytes()
    for slot, before in beside.items():
        assert slot_bytes(bundle, executor, slot, engine.positions[slot]) == before, f"slot {slot} was touched"
    for step in range(STEPS):
        slot_token[run.slot] = (11 * step + 3) % engine.vocab
        seen[f"logits of step {step}"] = decode(engine, executor, run.batch, run.slot).tobytes()
    seen["state"] = slot_bytes(bundle, executor, run.slot, len(prompt) + STEPS)
    return seen


def prefill(engine: Engine, executor: ReferenceExecutor, run: Run, start: int, tokens: Sequence[int]) -> np.ndarray:
    rows = min(n for n in OPTIONS.prefills if n >= max(run.rows, len(tokens)))
    bucket = f"prefill-t{rows}-c128"
    io = executor.io(bucket)
    io["prompt"][:] = -(2**31)  # what lies behind the prompt is never read
    io["prompt"][: len(tokens)] = tokens
    io["slot"][0], io["start"][0], io["length"][0] = run.slot, start, len(tokens)
    executor.run(bucket)
    engine.positions[run.slot] = start + len(tokens)
    return io["logits"][0].copy()


def decode(engine: Engine, executor: ReferenceExecutor, batch: Sequence[int], slot: int) -> np.ndarray:
    rows = min(n for n in OPTIONS.batches if n >= len(batch))
    bucket = f"decode-b{rows}-c{128 if engine.positions[slot] % 2 else 64}"
    io = executor.io(bucket)
    poison(executor)
    io["slots"][:] = [*batch, *[SCRATCH] * (rows - len(batch))]
    executor.run(bucket)
    for other in set(batch) - {SCRATCH}:
        engine.positions[other] += 1
    return io["logits"][list(batch).index(slot)].copy()


def slot_bytes(bundle: Bundle, executor: ReferenceExecutor, slot: int, length: int) -> bytes:
    """Everything the state holds for one slot at `length` positions; counts aside, which tell prompt from output."""
    parts: list[bytes] = []
    for name, buffer in bundle.manifest["buffers"].items():
        if buffer["arena"] != "state" or name in ("counts", "slot_token"):
            continue
        array = executor.state(name)
        first = slot * bundle.manifest["context"]
        parts.append((array[slot] if len(array) == SLOTS + 1 else array[first : first + length]).tobytes())
    return b"".join(parts)


PLAIN = Run()
CASES = {
    "another slot": Run(slot=2, batch=(2,)),
    "a wider bucket": Run(rows=64),
    "chunks of 16, the last one padded": Run(cuts=(16, 16, 5), rows=16),
    "one token at a time": Run(cuts=(1,) * LENGTH),
    "one token at a time in a padded bucket": Run(cuts=(1,) * LENGTH, rows=4),
    "ragged cuts": Run(cuts=(3, 1, 16, 4, 13)),
    "last of a full batch": Run(slot=3, batch=(0, 1, 2, 3)),
    "between padding": Run(slot=1, batch=(SCRATCH, 1, SCRATCH, 2)),
    "through the decode program": Run(through_decode=True),
}


def prompt_of(bundle: Bundle) -> list[int]:
    rng = np.random.default_rng(5)
    return rng.integers(0, bundle.manifest["model"]["real_vocab_size"], LENGTH).tolist()


@pytest.mark.parametrize("case", CASES)
def test_a_row_gets_the_same_bits(bundle: Bundle, case: str):
    prompt = prompt_of(bundle)
    assert observe(bundle, CASES[case], prompt, seed=1) == observe(bundle, PLAIN, prompt)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Any way to cut, place and surround the prompt."""
    cuts: list[int] = []
    while (left := LENGTH - sum(cuts)) > 0:
        cuts.append(draw(st.integers(1, left)))
    slot = draw(st.integers(0, SLOTS - 1))
    others = draw(st.lists(st.sampled_from([s for s in range(SLOTS) if s != slot]), max_size=SLOTS - 1, unique=True))
    padding = draw(st.integers(0, SLOTS - 1 - len(others)))
    batch = draw(st.permutations([slot, *others, *[SCRATCH] * padding]))
    return Run(slot, tuple(cuts), draw(st.sampled_from(OPTIONS.prefills)), tuple(batch))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs(), seed=st.integers(0, 2**32 - 1))
def test_no_way_to_cut_place_or_surround_a_prompt_shows(bundle: Bundle, run: Run, seed: int):
    prompt = prompt_of(bundle)
    assert observe(bundle, run, prompt, seed) == observe(bundle, PLAIN, prompt)


def pad_on_a_live_slot(prompt, slot, start, length, counts, tokens, slots, positions, last) -> None:
    instructions.rows_prefill(prompt, slot, start, length, counts, tokens, slots, positions, last)
    slots[:] = slot[0]


def memory_not_reset(*args, slots, positions, **operands) -> None:
    mixers.gated_delta(*args, slots=slots, positions=np.maximum(positions, 1), **operands)


def ring_not_masked(x, weight, slots, positions, ring, y) -> None:
    mixers.causal_conv1d(x, weight, slots, positions + weight.shape[1] * 8, ring, y)


def plain_matmul(x, q, scale, y) -> None:
    """The whole batch in one product: BLAS sums in another order for another height. Shows in the float32 logits."""
    y[:] = x.astype(np.float32) @ q.T


def stale_keys(q, slots, positions, k, v, y, *, context, gate=None) -> None:
    """Attends to one position too many."""
    mixers.attention(q, slots, np.minimum(positions + 1, context - 1), k, v, y, context=context, gate=gate)


def batch_mean(x, y) -> None:
    """A row that sees its neighbours: the mildest leak there is."""
    instructions.silu_mul(x, y)
    y[:] = y + (y.astype(np.float32).mean() * np.float32(1e-2)).astype(y.dtype)


BUGS: dict[str, Callable[..., None]] = {
    "rows_prefill": pad_on_a_live_slot,
    "gated_delta": memory_not_reset,
    "causal_conv1d": ring_not_masked,
    "linear_int8": plain_matmul,
    "attention": stale_keys,
    "silu_mul": batch_mean,
}


def test_the_check_catches_planted_bugs(bundle: Bundle):
    prompt = prompt_of(bundle)
    ops = {instruction.op for program in bundle.programs.values() for instruction in program.code}
    for op in sorted(ops & set(BUGS)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(FUNCTIONS, op, BUGS[op])
            assert is_noticed(bundle, prompt), f"the planted bug in {op} went unnoticed"
    assert not is_noticed(bundle, prompt)


def is_noticed(bundle: Bundle, prompt: list[int]) -> bool:
    """Whether any case differs from the plain run, or touches another slot, or reads out of bounds."""
    plain: dict[str, bytes] = {}
    for run in (PLAIN, *CASES.values()):
        try:
            seen = observe(bundle, run, prompt, seed=len(run.cuts))
        except (AssertionError, IndexError):
            return True
        plain = plain or seen
        if seen != plain:
            return True
    return False
