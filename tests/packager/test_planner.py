"""Placement of work buffers: against painted bytes, the lower bound, and an executor whose dead values are NaN."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundles import ASSETS, SMALL
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.planner import lower_bound, peak, place_work, plan
from qpack_packager.prepare import prepare
from qpack_packager.serving import Options
from qpack_runtime.engine import Engine
from qpack_runtime.reference.executor import ReferenceExecutor
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.program import ALIGNMENT, Program
from qpack_schemas.strict_json import dump_compact

from .commands.headers import write_headers

Span = tuple[int, int]
Values = dict[str, tuple[int, Span]]  # name -> (bytes per row, lifetime)

SPANS = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
SIZES = st.integers(1, 5000) | st.sampled_from([256, 512, 4096])  # equal ones, so that orders have ties to break
VALUES = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.tuples(SIZES, SPANS), max_size=40)


def planned(values: Values) -> dict[str, int]:
    return plan({name: size for name, (size, _) in values.items()}, {name: span for name, (_, span) in values.items()})


def assert_sound(values: Values, offsets: Mapping[str, int]) -> int:
    """Paints every instruction's live values byte by byte; returns the bytes that were touched."""
    assert offsets.keys() == values.keys()
    assert all(offset % ALIGNMENT == 0 and offset >= 0 for offset in offsets.values())
    end = 0
    for moment in {span[0] for _, span in values.values()}:
        live = [(offsets[n], offsets[n] + size) for n, (size, span) in values.items() if span[0] <= moment <= span[1]]
        painted = np.zeros(max((last for _, last in live), default=0), np.uint8)
        for first, last in live:
            painted[first:last] += 1
        assert painted.max(initial=0) <= 1, f"two values on one byte at instruction {moment}"
        end = max(end, len(painted))
    return end


@given(VALUES)
def test_values_that_live_together_never_share_a_byte_and_are_aligned(values: Values):
    offsets = planned(values)
    end = assert_sound(values, offsets)
    sizes, spans = {n: v[0] for n, v in values.items()}, {n: v[1] for n, v in values.items()}
    assert lower_bound(sizes, spans) <= peak(sizes, offsets)
    assert peak(sizes, offsets) - ALIGNMENT < end or not values


@given(values=VALUES, seed=st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(values: Values, seed: random.Random):
    values |= dict.fromkeys(("tie0", "tie1", "tie2"), (700, (3, 9)))
    names = list(values)
    seed.shuffle(names)
    assert planned({name: values[name] for name in names}) == planned(values)


@given(VALUES)
def test_the_lower_bound_is_the_largest_sum_of_what_lives_at_once(values: Values):
    """Counted instruction by instruction, not only where lifetimes begin."""
    blocks = [(-(-size // 256) * 256, first, last) for size, (first, last) in values.values()]
    sums = [sum(size for size, first, last in blocks if first <= moment <= last) for moment in range(60)]
    assert lower_bound({n: v[0] for n, v in values.items()}, {n: v[1] for n, v in values.items()}) == max(sums)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_take_at_most_15_percent_more_than_the_lower_bound(seed: int):
    rng = random.Random(seed)
    values: Values = {}
    for index in range(rng.randint(10, 60)):
        first = rng.randint(0, 30)
        size = rng.choice([rng.randint(1, 2000), rng.randint(1, 40) * 256])
        values[f"v{index}"] = size, (first, first + rng.randint(0, 12))
    sizes, spans = {n: v[0] for n, v in values.items()}, {n: v[1] for n, v in values.items()}
    offsets = planned(values)
    assert_sound(values, offsets)
    assert peak(sizes, offsets) <= 1.15 * lower_bound(sizes, spans)


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Program]]:
    """The programs of a model, with as many layers as it is published with."""
    layers = {"qwen2": 24, "qwen3": 28, "qwen3_5": 24}
    made: dict[str, dict[str, Program]] = {}

    def get(model: str) -> dict[str, Program]:
        if model not in made:
            path, options = ASSETS / model, SMALL
            if model in layers:
                path, options = tmp_path_factory.mktemp("headers") / model, Options()
                write_headers(path, model, num_hidden_layers=layers[model])
            made[model] = {**prepare(ModelText(path), options).lowered.programs}
        return made[model]

    return get


MODELS = ("tiny-qwen3", "tiny-qwen3_5", "qwen2", "qwen3", "qwen3_5")


def last_uses(program: Program) -> dict[str, Span]:
    """First and last instruction that names each work buffer, read from the JSON form."""
    spans: dict[str, Span] = {}
    for index, instruction in enumerate(program.to_json()["code"]):
        for part in ("inputs", "outputs", "updates"):
            for name in instruction.get(part, {}).values():
                if name in program.buffers and program.buffers[name].arena == "work":
                    spans[name] = spans.get(name, (index, index))[0], index
    return spans


@pytest.mark.parametrize("model", MODELS)
def test_lowered_programs_take_exactly_the_lower_bound(lowered: Callable[[str], dict[str, Program]], model: str):
    for program in lowered(model).values():
        spans = last_uses(program)
        assert spans == program.lifetimes()
        sizes = {name: program.buffers[name].bytes() for name in spans}
        assert_sound({n: (sizes[n], spans[n]) for n in spans}, {n: program.buffers[n].offset for n in spans})
        assert program.work_bytes_per_row() == lower_bound(sizes, spans)


def test_the_programs_of_qwen3_5_0_8b_are_small(lowered: Callable[[str], dict[str, Program]]):
    programs = lowered("qwen3_5")
    assert sum(i.op == "gated_delta" for i in programs["decode"].code) == 18
    assert sum(i.op == "attention" for i in programs["decode"].code) == 6
    assert sum(len(dump_compact(program.to_json())) for program in programs.values()) < 200_000


class Poisoned(ReferenceExecutor):
    """Fills the work arena with NaN before a step, and every value with NaN right after its last use."""

    def __init__(self, bundle: Bundle):
        super().__init__(bundle)
        self.buckets = {bucket["name"]: bucket for bucket in bundle.manifest["buckets"]}
        self.programs = bundle.programs
        self.poisoned = 0

    def run(self, bucket: str) -> None:
        program, rows = self.programs[self.buckets[bucket]["program"]], self.buckets[bucket]["rows"]
        self.arenas.work[:] = 0xFF  # a NaN in every float type, -1 in every integer type
        spans = last_uses(program)
        with np.errstate(all="ignore"):
            for index, call in enumerate(self._calls[bucket]):
                call()
                for name in (name for name, (_, last) in spans.items() if last == index):
                    dead = self.arenas.view(name, program.buffers[name], rows)
                    dead.reshape(-1).view(np.uint8)[:] = 0xFF
                    self.poisoned += 1


def decoded(bundle: Bundle, executor: ReferenceExecutor) -> list[bytes]:
    """Logits, choices and state of a few padded steps of two slots."""
    engine, trace = Engine(executor, bundle.manifest), []
    for slot, length in ((0, 5), (2, 21)):
        trace.append(str(engine.prefill(slot, range(3, 3 + length))).encode())
    for slots in ([2], [0, 2], [2, 0]):
        trace.append(str(engine.decode(slots)).encode())
        trace.append(executor.io("decode-b4-c64")["logits"][: len(slots)].tobytes())
    return [*trace, executor.arenas.state.tobytes()]


@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-qwen3_5"])
def test_a_value_is_not_needed_after_its_last_use(tiny_bundle: Callable[[str], Path], model: str):
    bundle = open_bundle(tiny_bundle(model))
    poisoned = Poisoned(bundle)
    assert decoded(bundle, poisoned) == decoded(bundle, ReferenceExecutor(bundle))
    assert poisoned.poisoned > 5 * len(bundle.programs["decode"].code)


def test_a_plan_in_which_one_lifetime_is_too_short_changes_the_result(tiny_bundle: Callable[[str], Path]):
    """Holds the test above to account: with such a plan it must fail."""
    bundle = open_bundle(tiny_bundle("tiny-qwen3"))
    program = bundle.programs["decode"]
    spans = last_uses(program)
    name = max(spans, key=lambda n: (spans[n][1] - spans[n][0], n))  # slot numbers and positions live longest
    first = spans[name][0]
    short = {**spans, name: (first, first + 1)}
    sizes = {n: program.buffers[n].bytes() for n in spans}
    offsets = plan(sizes, short)
    buffers = {n: replace(b, offset=offsets.get(n, b.offset)) for n, b in program.buffers.items()}
    wrong = replace(bundle, programs={**bundle.programs, "decode": replace(program, buffers=buffers)})
    try:
        outcome = decoded(wrong, Poisoned(wrong))
    except IndexError:  # a position that another value was written over
        return
    assert outcome != decoded(bundle, ReferenceExecutor(bundle))


def test_placing_twice_changes_nothing(lowered: Callable[[str], dict[str, Program]]):
    for program in lowered("tiny-qwen3_5").values():
        assert place_work(program) == program
