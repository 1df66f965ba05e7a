"""Times of steps, one by one, from the call of the engine to the token: Python and the host's part are in them."""

import gc
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from qpack_runtime.bench.cases import Case
from qpack_runtime.engine import Engine
from qpack_runtime.generate import require_token
from qpack_schemas.manifest import Manifest

WINDOW = 32  # decode steps from one position on, before all sequences are put back to it
WARM_STEPS, WARM_PROMPTS = 8, 1  # not counted
STEPS_A_PROMPT, LEAST_PROMPTS = 8, 3  # a prompt takes as long as many steps: so many fewer are measured


@dataclass(frozen=True)
class Times:
    """Of the steps of a case, in milliseconds."""

    median: float
    p99: float  # interpolated between the two nearest steps: of few steps, close to the slowest
    std: float  # of the steps measured, not an estimate for others: divided by their number

    @staticmethod
    def of(seconds: Sequence[float]) -> "Times":
        milliseconds = 1000 * np.asarray(seconds)
        median, p99 = np.percentile(milliseconds, [50, 99])
        return Times(float(median), float(p99), float(milliseconds.std()))


class Meter:
    """Measures one engine, whose slots are its own meanwhile.

    The sequences of a decode step hold exactly the case's tokens at its first step and up to WINDOW - 1 more at a later
    one, all in the same bucket. Then each is put back by taking in its last token again: one row, where a prompt would
    take longer than the steps. Keys and values become the same again; a recurrent state has then taken in that token
    more than once, which changes its values and no time."""

    def __init__(self, engine: Engine, manifest: Manifest):
        self._engine = engine
        self._ends = {bucket["context"] for bucket in manifest["buckets"] if bucket["program"] == "decode"}
        self._seated: dict[int, int] = {}  # slot -> tokens of its prompt

    def measure(self, case: Case, steps: int) -> list[float]:
        """Seconds of each of `steps` decode steps, or of every eighth as many prompts, at least three. Nothing else of
        the case is in them: filling the cache, putting back, warming up.

        Raises QpackError if the model computes no finite logits, FitError if no bucket holds the case."""
        with _no_collection():
            if case.phase == "decode":
                self._seat(case)
                self._decode(case, WARM_STEPS)
                return self._decode(case, steps)
            self._seated.pop(0, None)
            self._prefill(case, WARM_PROMPTS)
            return self._prefill(case, max(LEAST_PROMPTS, steps // STEPS_A_PROMPT))

    def _seat(self, case: Case) -> None:
        """Fills the slots of the case that don't hold its prompt already."""
        for slot in range(case.batch):
            if self._seated.get(slot) != case.context:
                require_token(self._engine.prefill(slot, tokens_of(slot, case.context, self._engine.vocab)))
                self._seated[slot] = case.context

    def _put_back(self, case: Case) -> None:
        for slot in range(case.batch):
            last = tokens_of(slot, case.context, self._engine.vocab)[-1:]
            require_token(self._engine.prefill_chunk(slot, case.context - 1, last))

    def _decode(self, case: Case, steps: int) -> list[float]:
        window = min(WINDOW, min(end for end in self._ends if end > case.context) - case.context)
        slots, seconds = range(case.batch), list[float]()
        while len(seconds) < steps:
            self._put_back(case)
            for _ in range(min(window, steps - len(seconds))):
                begin = perf_counter()
                choices = self._engine.decode(slots)
                seconds.append(perf_counter() - begin)
                for choice in choices:
                    require_token(choice)
        return seconds

    def _prefill(self, case: Case, times: int) -> list[float]:
        prompt, seconds = tokens_of(0, case.context, self._engine.vocab), list[float]()
        for _ in range(times):
            begin = perf_counter()
            choice = self._engine.prefill(0, prompt)
            seconds.append(perf_counter() - begin)
            require_token(choice)
        return seconds


def tokens_of(slot: int, count: int, vocab: int) -> list[int]:
    """Ids all over the vocabulary, the same at every call and others in every slot. Multiplicative hashing by the
    golden ratio: D. Knuth, "The Art of Computer Programming", volume 3, section 6.4."""
    return [((slot << 20) + place + 1) * 2654435769 % 2**32 * vocab >> 32 for place in range(count)]


@contextmanager
def _no_collection() -> Generator[None]:
    """No cyclic garbage is collected inside, so that no step pays for what others left behind; a step leaves hardly
    any. As `timeit` does."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
