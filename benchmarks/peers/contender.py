"""What every contender can do, and how a decode step is measured; each lives in a process of its own (worker.py)."""

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from qpack_runtime.bench.measure import tokens_of

MOST_SEQUENCES, MOST_POSITIONS, MOST_PROMPT = 8, 1024, 256  # what contenders make room for
WARM_UP = 2  # steps before those that count


class Contender(Protocol):
    """One library with one form of the model, loaded. A step is over when the next tokens are chosen, greedily."""

    facts: dict[str, str]  # versions and what the library said of its own choices, for the report

    def logits(self, tokens: list[int]) -> np.ndarray:
        """float32 [V]: behind the last of `tokens`, a sequence of its own."""
        ...

    def fill(self, batch: int, positions: int) -> None:
        """Each of the sequences 0 to batch - 1 holds `positions` tokens of `prompt` afterwards. Not measured."""
        ...

    def step(self) -> None:
        """One token more for each of the sequences of the last `fill`."""
        ...

    def prefill(self, tokens: int) -> None:
        """A sequence of so many tokens, from nothing, and the choice of the next one."""
        ...


def prompt(length: int, vocab: int) -> list[int]:
    """The same token ids for all, those that `qpack-runtime bench` takes."""
    return tokens_of(0, length, vocab)


def decode_times(contender: Contender, batch: int, context: int, steps: int) -> list[float]:
    """Milliseconds of `steps` steps; the first finds exactly `context` tokens in the cache of each sequence."""
    contender.fill(batch, context - WARM_UP)
    for _ in range(WARM_UP):
        contender.step()
    return _times(contender.step, steps)


def prefill_times(contender: Contender, tokens: int, times: int) -> list[float]:
    """Milliseconds of each of `times` prompts."""
    contender.prefill(tokens)
    return _times(lambda: contender.prefill(tokens), times)


def _times(call: Callable[[], None], times: int) -> list[float]:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - begin))
    return taken
