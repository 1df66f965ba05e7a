"""One answer to be made: what the HTTP side hands to the engine thread, and what comes back."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.errors import QpackError

FinishReason = Literal["stop", "length"]
Cancelled = Literal["disconnect", "timeout", "drain"]


class Grammar(Protocol):
    """What may come next in one sequence."""

    def mask(self, bits: np.ndarray) -> None: ...  # writes int32 [V / 32], bit set: allowed
    def accept(self, token: int) -> None: ...


@dataclass(frozen=True)
class Scored:
    """A token with its log-probability and the likeliest ones at its place, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Started:
    """The sequence has a slot, which already held the first `cached` tokens of its prompt."""

    cached: int


@dataclass(frozen=True)
class Piece:
    """Text that is certain: whole characters, and no part of it can belong to a stop string. `scored` are the tokens
    since the last piece, if the job asked for log-probabilities."""

    text: str
    scored: tuple[Scored, ...] = ()


@dataclass(frozen=True)
class Finished:
    reason: FinishReason
    output: tuple[int, ...]  # ids, the one that ended it included


@dataclass(frozen=True)
class Failed:
    """No more will come. `reason` is set if the job was cancelled."""

    error: QpackError
    reason: Cancelled | None = None


Event = Started | Piece | Finished | Failed


@dataclass(eq=False)
class Job:
    """One sequence. The HTTP side fills it, and its thread alone calls `deliver`."""

    prompt: list[int]  # at least one id
    options: SamplingOptions
    max_tokens: int  # at least 1; prompt and answer fit into the context
    deliver: Callable[[Event], None]
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    client: str = ""  # who asked: fairness and prefix continuation go by it
    session: str | None = None
    submitted: float = field(default_factory=time.perf_counter)  # seconds
