"""Who is next: start-time fair queueing, so that no client waits behind another's crowd.

A job's start tag is the later of the queue's time and the finish tag of its client's job before; its finish tag lies
its cost behind. The smallest start tag goes first, and becomes the queue's time. (Goyal, Vin, Cheng: Start-time Fair
Queueing, 1996, with equal weights.)
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import count

from qpack_runtime.serve.engine.job import Job


class FairQueue:
    """Waiting jobs. A client alone is served in order of arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Job]] = []
        self._time = 0.0
        self._finish: dict[str, float] = {}  # client -> finish tag of its last job
        self._arrivals = count()

    def push(self, job: Job) -> None:
        """The cost of a job is what it may keep an engine busy with: the tokens of its prompt and of its answer."""
        start = max(self._time, self._finish.get(job.client, 0.0))
        self._finish[job.client] = start + len(job.prompt) + job.max_tokens
        heapq.heappush(self._heap, (start, next(self._arrivals), job))

    def pop(self) -> Job:
        self._time, _, job = heapq.heappop(self._heap)
        if not self._heap:  # nobody is owed anything: the next crowd begins behind all that was served
            self._time, self._finish = max(self._finish.values()), {}
        return job

    def discard(self, jobs: Iterable[Job]) -> None:
        """Takes jobs out of the queue; those that aren't in it are no matter."""
        gone = set(jobs)
        self._heap = [entry for entry in self._heap if entry[2] not in gone]
        heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[Job]:
        """In no particular order."""
        return (job for _, _, job in self._heap)

    def __len__(self) -> int:
        return len(self._heap)
