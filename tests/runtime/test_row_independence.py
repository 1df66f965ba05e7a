"""What a row gets depends on its own inputs and its slot's state alone: bit for bit, with garbage everywhere else.

A run is described by how the prompt is cut, which slot it sits in, what runs beside it and on how many threads; all
must give the same logits and leave the same state. One code path of the CPU need not give the bits of another. The same
check must catch bugs of the kinds that recurrent-state models are known for (vllm#39064, sglang#30974,
nano-vllm#258); tests/runtime/cpu/test_planted_bugs.py plants some in the sources of the CPU kernels.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bundles import ASSETS, build_bundle
from checkpoints import random_checkpoint
from executors import CPU_KINDS, REFERENCE, Kind
from qpack_runtime.cpu.executor import CpuExecutor
from qpack_runtime.reference import instructions, mixers
from qpack_runtime.reference.executor import FUNCTIONS, ReferenceExecutor
from qpack_schemas.bundle import Bundle, open_bundle
from row_runs import CASES, OPTIONS, PLAIN, SCRATCH, SLOTS, Run, is_noticed, observe, prompt_of

# The CPU kernels walk the cache in blocks of 128 positions: the longer prompt needs two.
LENGTHS = {"reference": 37, "fast": 150, "exact": 150}


@pytest.fixture(scope="module", params=["tiny-qwen3_5", "tiny-qwen3", "random qwen2", "tiny-qwen3_5 in float32"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("rows")
    name, _, dtype = request.param.partition(" in ")
    model = random_checkpoint(folder / "model", "qwen2", hidden_size=192) if "random" in name else ASSETS / name
    return open_bundle(build_bundle(model, folder / "bundle", replace(OPTIONS, dtype=dtype or "bfloat16")))


class Subject:
    """An executor of one kind on any number of threads, a prompt, and what the plain run on one thread gives."""

    def __init__(self, bundle: Bundle, kind: Kind):
        self.bundle, self.threads = bundle, kind.threads
        self.prompt = prompt_of(bundle, LENGTHS[kind.mode or "reference"])
        self._executor = cache(lambda threads: kind.make(bundle, threads))
        self._plain = cache(lambda length: observe(self._executor(1), bundle, PLAIN, self.prompt[:length]))

    def assert_same(self, run: Run, *, threads: int = 1, length: int | None = None, seed: int = 1) -> None:
        """The run gives the bits of the plain one, with the first `length` tokens of the prompt or all."""
        length = length or len(self.prompt)
        seen = observe(self._executor(threads), self.bundle, run, self.prompt[:length], seed)
        assert seen == self._plain(length)


@pytest.fixture(scope="module", params=[REFERENCE, *CPU_KINDS], ids=str)
def subject(bundle: Bundle, request: pytest.FixtureRequest) -> Subject:
    return Subject(bundle, request.param)


@pytest.mark.parametrize("case", CASES)
def test_a_row_gets_the_same_bits(subject: Subject, case: str):
    subject.assert_same(CASES[case])


@pytest.mark.parametrize("subject", CPU_KINDS, indirect=True, ids=str)
@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_does_not_show(subject: Subject, threads: int):
    subject.assert_same(PLAIN, threads=threads)
    subject.assert_same(Run(slot=3, cuts=(3, 1, 16, 64), batch=(0, 1, 2, 3)), threads=threads)
    subject.assert_same(Run(through_decode=True), threads=threads, length=20)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Any way to cut, place and surround the prompt."""
    cuts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    slot = draw(st.integers(0, SLOTS - 1))
    others = draw(st.lists(st.sampled_from([s for s in range(SLOTS) if s != slot]), max_size=SLOTS - 1, unique=True))
    padding = draw(st.integers(0, SLOTS - 1 - len(others)))
    batch = draw(st.permutations([slot, *others, *[SCRATCH] * padding]))
    return Run(slot, tuple(cuts), draw(st.sampled_from(OPTIONS.prefills)), tuple(batch))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs(), data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_no_way_to_cut_place_or_surround_a_prompt_shows(subject: Subject, run: Run, data: st.DataObject, seed: int):
    threads = data.draw(st.sampled_from(subject.threads), label="threads")
    subject.assert_same(run, threads=threads, seed=seed)


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


def test_bugs_planted_in_the_reference_are_noticed(bundle: Bundle):
    prompt = prompt_of(bundle, LENGTHS["reference"])
    ops = {instruction.op for program in bundle.programs.values() for instruction in program.code}
    for op in sorted(ops & set(BUGS)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(FUNCTIONS, op, BUGS[op])
            assert is_noticed([ReferenceExecutor(bundle)], bundle, prompt), f"the planted bug in {op} went unnoticed"
    assert not is_noticed([ReferenceExecutor(bundle)], bundle, prompt)


def padding_writes_the_cache(executor: CpuExecutor, io: dict[str, np.ndarray]) -> None:
    """Of the step's first slot, at position 0, as a row of padding would that sat on it."""
    padded = io["length"][0] < len(io["prompt"]) if "prompt" in io else SCRATCH in io["slots"]
    keys = next(name for name in executor.arenas.shared if name.endswith(".attn.k"))
    if padded:
        executor.state(keys)[0] = 0


def rows_see_each_other(executor: CpuExecutor, io: dict[str, np.ndarray]) -> None:
    if "slots" in io and (io["slots"] != SCRATCH).sum() > 1:
        io["logits"] *= np.float32(1.0000001)


def threads_show(executor: CpuExecutor, io: dict[str, np.ndarray]) -> None:
    if executor.team.threads == 3:
        io["logits"] += np.float32(1e-6)


def a_neighbour_advances(executor: CpuExecutor, io: dict[str, np.ndarray]) -> None:
    if "prompt" in io:
        executor.state("slot_position")[(io["slot"][0] + 1) % SLOTS] += 1


def unwritten_memory_is_read(executor: CpuExecutor, io: dict[str, np.ndarray]) -> None:
    """Of which one bit reaches the last bit of a logit."""
    io["logits"].view(np.uint32)[:] ^= executor.state("slot_token")[SCRATCH].astype(np.uint32) & 1


CPU_BUGS = (padding_writes_the_cache, rows_see_each_other, threads_show, a_neighbour_advances, unwritten_memory_is_read)


def test_bugs_planted_behind_the_steps_of_the_cpu_are_noticed(bundle: Bundle):
    def noticed(*bugs: Callable[..., None]) -> bool:
        class Broken(CpuExecutor):
            def run(self, bucket: str) -> None:
                super().run(bucket)
                for bug in bugs:
                    bug(self, self._io[bucket])

        return is_noticed([Broken(bundle, threads=threads) for threads in (1, 2, 3)], bundle, prompt)

    prompt = prompt_of(bundle, LENGTHS["reference"])
    for bug in CPU_BUGS:
        assert noticed(bug), f"{bug.__name__} went unnoticed"
    assert not noticed()
