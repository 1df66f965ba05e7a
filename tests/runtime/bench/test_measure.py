"""What is timed and what isn't, with an engine whose steps take known times on a clock of its own."""

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_runtime.bench import measure
from qpack_runtime.bench.cases import Case
from qpack_runtime.bench.measure import LEAST_PROMPTS, WARM_STEPS, WINDOW, Meter, Times, tokens_of
from qpack_runtime.bench.run import row
from qpack_runtime.engine import Choice
from qpack_schemas.errors import QpackError

MANIFEST: Any = {
    "buckets": [{"program": "decode", "context": 64}, {"program": "decode", "context": 512},
                {"program": "prefill", "context": 48}]
}  # fmt: skip
HOST_SECONDS = 7.0  # of anything that must not be in a step


class FakeEngine:
    """Keeps the positions of its slots and moves the clock: the n-th decode step takes n ms."""

    vocab = 1000

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now, self.steps, self.prompts, self.status = 0.0, 0, 0, 0
        self.positions: dict[int, int] = {}
        self.seen: list[tuple[list[int], list[int], bool]] = []  # of a step: slots, positions, whether gc was on
        monkeypatch.setattr(measure, "perf_counter", lambda: self.now)

    def prefill(self, slot: int, tokens: Sequence[int]) -> Choice:
        self.prompts += 1
        self.now += len(tokens) / 1000
        self.positions[slot] = len(tokens)
        return Choice(1, self.status, 0.0)

    def prefill_chunk(self, slot: int, start: int, tokens: Sequence[int]) -> Choice:
        self.now += HOST_SECONDS
        assert list(tokens) == tokens_of(slot, start + 1, self.vocab)[-1:]
        self.positions[slot] = start + len(tokens)
        return Choice(1, self.status, 0.0)

    def decode(self, slots: Sequence[int]) -> list[Choice]:
        self.seen.append((list(slots), [self.positions[slot] for slot in slots], gc.isenabled()))
        self.steps += 1
        self.now += self.steps / 1000
        for slot in slots:
            self.positions[slot] += 1
        return [Choice(1, self.status, 0.0) for _ in slots]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    return FakeEngine(monkeypatch)


def test_the_steps_behind_the_warm_up_are_timed_and_nothing_else(engine: Any):
    seconds = Meter(engine, MANIFEST).measure(Case("decode", 2, 100), 70)
    assert seconds == pytest.approx([(WARM_STEPS + 1 + number) / 1000 for number in range(70)])


def test_a_case_has_the_median_and_the_rates_of_its_steps(engine: Any):
    case = Case("decode", 4, 100)
    times = Times.of(Meter(engine, MANIFEST).measure(case, 21))
    assert times.median == pytest.approx(WARM_STEPS + 11)
    facts = row(case, times, 38_000_000, bandwidth=10.0)
    assert facts["median_ms"] == pytest.approx(19)
    assert facts["tokens_per_s"] == pytest.approx(4 / 0.019, rel=1e-5)
    assert facts["roofline_ratio"] == pytest.approx(3.8 / 19, rel=1e-5)  # 38 MB take 3.8 ms at 10 GB/s


def test_a_whole_prompt_is_one_step(engine: Any):
    case = Case("prefill", 1, 100)
    seconds = Meter(engine, MANIFEST).measure(case, 40)
    assert seconds == pytest.approx([0.1] * 5)
    assert row(case, Times.of(seconds), 10**6, bandwidth=1.0)["tokens_per_s"] == pytest.approx(1000)
    assert len(Meter(engine, MANIFEST).measure(case, 1)) == LEAST_PROMPTS


@given(context=st.integers(1, 511), batch=st.integers(1, 8), steps=st.integers(1, 100))
def test_every_step_begins_within_the_window_and_in_the_bucket_of_the_first(context: int, batch: int, steps: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "collect", lambda: None)  # of all that the tests have loaded, a hundred times
        engine: Any = FakeEngine(patch)
        Meter(engine, MANIFEST).measure(Case("decode", batch, context), steps)
    end = 64 if context < 64 else 512
    assert len(engine.seen) == WARM_STEPS + steps
    for slots, positions, _ in engine.seen:
        assert slots == list(range(batch))
        assert len(set(positions)) == 1
        assert context <= positions[0] < min(context + WINDOW, end)
    assert sum(positions[0] == context for _, positions, _ in engine.seen) >= 2  # warming up, and measuring


def test_a_slot_is_filled_once_for_all_cases_of_a_context(engine: Any):
    meter = Meter(engine, MANIFEST)
    for case, prompts in ((Case("decode", 1, 9), 1), (Case("decode", 4, 9), 4), (Case("decode", 2, 10), 6)):
        meter.measure(case, 40)
        assert engine.prompts == prompts
    meter.measure(Case("prefill", 1, 10), 8)  # into slot 0
    before = engine.prompts
    meter.measure(Case("decode", 2, 10), 8)
    assert engine.prompts == before + 1


def test_garbage_is_not_collected_while_steps_are_measured(engine: Any):
    assert gc.isenabled()
    Meter(engine, MANIFEST).measure(Case("decode", 1, 100), 40)
    assert not any(enabled for _, _, enabled in engine.seen)
    assert gc.isenabled()


@pytest.mark.parametrize(("status", "cause"), [(1, "not finite"), (2, "forbidden")])
@pytest.mark.parametrize("case", [Case("decode", 1, 100), Case("prefill", 1, 100)])
def test_a_model_that_gives_no_token_is_not_measured(engine: Any, case: Case, status: int, cause: str):
    engine.status = status
    with pytest.raises(QpackError, match=f"no token could be chosen: .*{cause}"):
        Meter(engine, MANIFEST).measure(case, 8)
    assert gc.isenabled()


def test_a_token_that_fails_in_a_measured_step_is_noticed_whichever_slot_it_is_of(engine: Any):
    decode = engine.decode
    failed = Choice(-1, 1, 0.0)
    engine.decode = lambda slots: [*decode(slots)[:-1], failed] if engine.steps == 20 else decode(slots)
    with pytest.raises(QpackError, match="no token could be chosen"):
        Meter(engine, MANIFEST).measure(Case("decode", 3, 100), 40)


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=200))
def test_percentiles_and_deviation_are_numpys(seconds: list[float]):
    times = Times.of(seconds)
    assert times.median == pytest.approx(1000 * np.percentile(seconds, 50))
    assert times.p99 == pytest.approx(1000 * np.percentile(seconds, 99))
    assert times.std == pytest.approx(1000 * np.std(seconds), abs=1e-9)


@given(st.integers(0, 1000), st.integers(1, 300), st.integers(1, 300_000))
def test_token_ids_are_of_the_vocabulary_and_always_the_same(slot: int, count: int, vocab: int):
    tokens = tokens_of(slot, count, vocab)
    assert len(tokens) == count
    assert all(0 <= token < vocab for token in tokens)
    assert tokens_of(slot, count + 1, vocab)[:-1] == tokens


def test_token_ids_are_all_over_the_vocabulary_and_others_in_each_slot():
    first, second = tokens_of(0, 1000, 151_936), tokens_of(1, 1000, 151_936)
    assert len({token * 10 // 151_936 for token in first}) == 10
    assert len(set(first)) > 990
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
