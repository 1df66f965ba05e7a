"""The server between HTTP and the engine thread: what was booted, who waits, who runs, and how a request gets in."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from qpack_runtime.serve.engine.job import Event, Failed, Finished, Job, Started
from qpack_runtime.serve.engine.thread import Delivery, EngineThread
from qpack_runtime.serve.http.api_error import ApiError
from qpack_runtime.serve.metrics import Metrics
from qpack_runtime.serve.model import ServedModel
from qpack_runtime.serve.readiness import Readiness
from qpack_runtime.serve.tracing import Tracing
from qpack_schemas.errors import QpackError

RECENT = 32  # sequences whose durations say how long the next will take


class Service:
    """Belongs to the event loop. The engine thread reaches it through `receive` alone."""

    def __init__(self, readiness: Readiness, metrics: Metrics, queue_limit: int, timeout: float):
        self.readiness, self.metrics = readiness, metrics
        self._queue_limit, self._timeout = queue_limit, timeout
        self._waiting: set[Job] = set()
        self._running: set[Job] = set()
        self._durations: deque[float] = deque(maxlen=RECENT)  # seconds from slot to end
        self._started: dict[Job, float] = {}
        self.idle = asyncio.Event()
        self.idle.set()
        # One thread, since the tokenizer is used a prompt at a time; the loop stays free meanwhile.
        self.tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self.tracing: Tracing | None = None
        self.engine: EngineThread  # set before the loop runs
        self.served: ServedModel  # set before `readiness.booted` is

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def queue_limit(self) -> int:
        return self._queue_limit

    def require_ready(self) -> None:
        """Raises ApiError 503 unless requests are let in."""
        state = self.readiness
        if state.ready:
            return
        self.metrics.refused("draining" if state.draining else "not_ready")
        problem = "is shutting down" if state.draining else "has failed" if state.failure else "is still booting"
        raise ApiError(503, f"the server {problem}", headers=_retry_after(1.0), code="not_ready")

    @asynccontextmanager
    async def answering(self, jobs: Sequence[Job], timeout: float | None) -> AsyncIterator["Events"]:
        """Hands jobs to the engine, all or none, and gives their events. Leaving early cancels what is not over.

        `timeout` in seconds can only shorten the server's own. Raises ApiError 429 where the queue has no room, 400
        where it never has."""
        self.require_ready()
        most = self._queue_limit + self.served.booted.engine.slots
        if len(jobs) > most:
            raise ApiError(400, f"the request makes {len(jobs)} sequences; this server takes at most {most} at once")
        if len(self._waiting) + len(jobs) > self._queue_limit + self._free_slots():
            self.metrics.refused("queue_full")
            message = f"the queue is full: {len(self._waiting)} of {self._queue_limit} wait and {len(jobs)} came"
            raise ApiError(429, message, headers=_retry_after(self._expected_wait()), code="queue_full")
        events = Events(len(jobs))
        for index, job in enumerate(jobs):
            job.deliver = partial(events.put, index)
        self._waiting.update(jobs)
        self.idle.clear()
        self.engine.submit(jobs)
        seconds = min(timeout or math.inf, self._timeout)
        timer = asyncio.get_running_loop().call_later(seconds, self._expire, jobs, seconds)
        try:
            yield events
        finally:
            timer.cancel()
            if left := [job for job in jobs if job in self._waiting or job in self._running]:
                self.engine.cancel(left, "disconnect", QpackError("the client has left"))

    def receive(self, batch: Delivery) -> None:
        """What a step gave, on the event loop."""
        for job, event in batch:
            self._account(job, event)
            job.deliver(event)
        if not self._waiting and not self._running:
            self.idle.set()

    def fail(self, error: QpackError) -> None:
        """The engine has ended: nobody else will answer what it had not taken yet."""
        self.receive([(job, Failed(error)) for job in (*self._running, *self._waiting)])

    def _account(self, job: Job, event: Event) -> None:
        if isinstance(event, Started):
            self._waiting.discard(job)
            self._running.add(job)
            self._started[job] = time.perf_counter()
        elif isinstance(event, (Finished, Failed)):
            if isinstance(event, Failed) and event.reason is not None:
                unstarted = event.reason == "timeout" and job in self._waiting
                self.metrics.refused("queue_timeout") if unstarted else self.metrics.cancelled(event.reason)
            self._waiting.discard(job)
            self._running.discard(job)
            if (started := self._started.pop(job, None)) is not None:
                self._durations.append(time.perf_counter() - started)

    def _expire(self, jobs: Sequence[Job], seconds: float) -> None:
        error = QpackError(f"the answer was not ready within {seconds:g} s", remedy="ask for fewer tokens")
        self.engine.cancel(jobs, "timeout", error)

    def _free_slots(self) -> int:
        return max(0, self.served.booted.engine.slots - len(self._running))

    def _expected_wait(self) -> float:
        """Seconds until the queue has moved by one: how long a sequence took lately, over the slots."""
        mean = sum(self._durations) / len(self._durations) if self._durations else 1.0
        return mean / self.served.booted.engine.slots


class Events:
    """The events of the sequences of one request in the order in which they came, each with the sequence's index."""

    def __init__(self, sequences: int):
        self._queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._open = sequences

    def put(self, index: int, event: Event) -> None:
        self._queue.put_nowait((index, event))

    async def batch(self) -> list[tuple[int, Event]]:
        """What has come since the last call, at least one event; empty if all sequences are over."""
        if not self._open:
            return []
        batch = [await self._queue.get()]
        while not self._queue.empty():
            batch.append(self._queue.get_nowait())
        self._open -= sum(isinstance(event, (Finished, Failed)) for _, event in batch)
        return batch


def _retry_after(seconds: float) -> dict[str, str]:
    """In whole seconds, as HTTP has it, and in milliseconds, as OpenAI's clients prefer it."""
    milliseconds = max(1, math.ceil(seconds * 1000))
    return {"retry-after": str(math.ceil(milliseconds / 1000)), "retry-after-ms": str(milliseconds)}
