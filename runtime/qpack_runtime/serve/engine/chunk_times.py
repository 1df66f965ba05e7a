"""How long a prompt chunk of each size takes here, learnt while serving: what bounds the wait of running answers."""

from collections.abc import Sequence

WEIGHT = 0.3  # of the newest measurement


class ChunkTimes:
    """`sizes` are the chunk sizes that buckets offer, ascending; `longest_wait` is in seconds."""

    def __init__(self, sizes: Sequence[int], longest_wait: float):
        self._sizes, self._longest_wait = sizes, longest_wait
        self._seconds: dict[int, float] = {}  # size -> moving average

    @property
    def largest(self) -> int:
        return self._sizes[-1]

    def observe(self, tokens: int, seconds: float) -> None:
        """A chunk of so many tokens took so long."""
        size = next(size for size in self._sizes if size >= tokens)
        known = self._seconds.get(size, seconds)
        self._seconds[size] = known + WEIGHT * (seconds - known)

    def longest_chunk(self) -> int:
        """Tokens of the largest chunk that keeps within the longest wait; never less than the smallest size."""
        within = [size for size in self._sizes[1:] if self._expected(size) <= self._longest_wait]
        return max(within, default=self._sizes[0])

    def _expected(self, size: int) -> float:
        """Seconds of a chunk; of one never seen, in proportion to the nearest size seen, or endless."""
        if not self._seconds:
            return float("inf")
        nearest = min(self._seconds, key=lambda seen: abs(seen - size))
        return self._seconds[nearest] * (size / nearest if size != nearest else 1)
