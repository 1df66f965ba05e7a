"""When requests are sent: one client after the other, all at once, or as they come to a server that many people use."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any


@dataclass(frozen=True)
class Load:
    """Requests and how they are sent: each at its time, or by `clients` that send their next when an answer ends.

    `due`: seconds from the beginning, one for each of `bodies`; empty for clients."""

    host: str
    port: int
    bodies: list[dict[str, Any]]
    clients: int = 0
    due: Sequence[float] = field(default_factory=list)


def poisson(rate: float, count: int, seed: int) -> Iterator[float]:
    """Seconds of `count` arrivals of a Poisson process, `rate` a second: the gaps between them are exponential."""
    gaps = random.Random(seed)
    return accumulate(gaps.expovariate(rate) for _ in range(count))
