"""The one thread that owns the executor: boots it, runs the steps that the scheduler asks for, hands out what comes.

Others talk to it through `submit` and `cancel`, from any thread. What a step gave leaves in one batch per step, so that
the event loop is woken once and works while the next step runs.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qpack_runtime.boot import Booted
from qpack_runtime.engine import Choice, Pending
from qpack_runtime.serve.engine.chunk_times import ChunkTimes
from qpack_runtime.serve.engine.job import Cancelled, Event, Failed, Finished, Job, Started
from qpack_runtime.serve.engine.scheduler import Chunk, Scheduler, Step
from qpack_runtime.serve.engine.seats import Seats
from qpack_runtime.serve.engine.sequence import Sequence
from qpack_runtime.serve.metrics import Metrics
from qpack_schemas.errors import QpackError

Delivery = list[tuple[Job, Event]]


@dataclass(frozen=True)
class Stop:
    """Ends the thread; what is still there fails with `error`."""

    error: QpackError


@dataclass(frozen=True)
class Cancel:
    jobs: tuple[Job, ...]
    reason: Cancelled
    error: QpackError


@dataclass
class Launched:
    step: Step
    pending: Pending
    at: float  # time.perf_counter() seconds
    host_seconds: float  # since the last step was read
    fallbacks: int  # kernels launched without a graph, before it


class EngineThread(threading.Thread):
    """`boot` runs on this thread, then `on_booted`. `deliver` gets each batch of events; `on_end` is called last, with
    the error that ended the thread or None. All three are called on this thread."""

    def __init__(
        self,
        boot: Callable[[], Booted],
        *,
        metrics: Metrics,
        longest_wait: float,
        on_booted: Callable[[Booted], None],
        deliver: Callable[[Delivery], None],
        on_end: Callable[[BaseException | None], None],
    ):
        super().__init__(name="engine", daemon=True)  # a step that hangs must not keep the process from ending
        self._boot, self._metrics, self._longest_wait = boot, metrics, longest_wait
        self._on_booted, self._deliver, self._on_end = on_booted, deliver, on_end
        self._inbox: queue.SimpleQueue[Job | Cancel | Stop] = queue.SimpleQueue()
        self._outbox: Delivery = []
        self._jobs: dict[Job, None] = {}  # not over yet, in order of arrival
        self.spent: dict[str, float] = {}  # bucket -> seconds of its steps
        self.busy_since: float | None = None  # time.monotonic() of the launch that is not read yet

    def submit(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._inbox.put(job)

    def cancel(self, jobs: Iterable[Job], reason: Cancelled, error: QpackError) -> None:
        """Frees their slots within one step; jobs that are over are no matter."""
        self._inbox.put(Cancel(tuple(jobs), reason, error))

    def stop(self, error: QpackError) -> None:
        self._inbox.put(Stop(error))

    def run(self) -> None:
        failure: BaseException | None = None
        try:
            booted = self._boot()
            self._engine = booted.engine
            manifest = booted.bundle.manifest
            self._chunks = ChunkTimes(self._engine.prefill_rows, self._longest_wait)
            self._scheduler = Scheduler(
                Seats(self._engine.slots, self._engine.executor.same_bits),
                self._engine.decode_rows,
                self._chunks,
                booted.token_bytes,
                frozenset(manifest["model"]["eos_token_ids"]),
            )
            self._rows = {bucket["name"]: bucket["rows"] for bucket in manifest["buckets"]}
            self._on_booted(booted)
            self._serve()
        except BaseException as error:  # whatever it is, nobody may wait for this thread any longer
            failure = error
            if self.busy_since is not None:
                self._metrics.step_failed(self._engine.last_bucket)
            for job in self._jobs:
                self._outbox.append((job, Failed(QpackError("the engine has stopped after an error"))))
            self._deliver(self._outbox)
        finally:
            self._on_end(failure)

    def _serve(self) -> None:
        launched: Launched | None = None
        self._mark = time.perf_counter()
        while True:
            if not self._receive(wait=launched is None and self._scheduler.idle):
                return
            for sequence in self._scheduler.admit():
                self._begin(sequence)
            step = self._scheduler.next()
            following = self._launch(step) if step is not None else None
            if not self._engine.executor.lookahead:
                launched, following = following, None
            if launched is not None:
                self._finish(launched)
            launched = following
            self._scheduler.vacate(self._engine.positions.__getitem__)
            self._metrics.set_load(len(self._scheduler.running), len(self._scheduler.queue))
            if self._outbox:
                batch, self._outbox = self._outbox, []
                self._deliver(batch)

    def _receive(self, *, wait: bool) -> bool:
        """Takes what the others sent. False: the thread ends."""
        if wait:
            message = self._inbox.get()
            self._mark = time.perf_counter()  # waiting for work is no work
            if not self._handle(message):
                return False
        while not self._inbox.empty():
            if not self._handle(self._inbox.get()):
                return False
        return True

    def _handle(self, message: Job | Cancel | Stop) -> bool:
        if isinstance(message, Job):
            self._jobs[message] = None
            self._scheduler.queue.push(message)
        elif isinstance(message, Cancel):
            for job in self._scheduler.cancel(message.jobs):
                self._emit(job, Failed(message.error, message.reason))
        else:
            for job in self._scheduler.cancel(self._jobs):
                self._emit(job, Failed(message.error, "drain"))
            self._deliver(self._outbox)
            return False
        return True

    def _begin(self, sequence: Sequence) -> None:
        job = sequence.job
        self._metrics.admitted(time.perf_counter() - job.submitted)
        self._emit(job, Started(sequence.cached))
        try:
            self._engine.admit(sequence.slot, job.options, grammar=job.grammar is not None)
            self._restrict(sequence)
        except QpackError as error:
            self._fail(sequence, error)

    def _launch(self, step: Step) -> Launched:
        executor, begin = self._engine.executor, time.perf_counter()
        host_seconds, fallbacks = begin - self._mark, executor.fallbacks
        self.busy_since = time.monotonic()
        if isinstance(step, Chunk):
            tokens = step.sequence.job.prompt[step.start : step.end]
            pending = self._engine.launch_chunk(step.sequence.slot, step.start, tokens)
        else:
            pending = self._engine.launch_decode([sequence.slot for sequence in step.sequences])
        return Launched(step, pending, begin, host_seconds, fallbacks)

    def _finish(self, launched: Launched) -> None:
        """Reads a step and takes what it chose."""
        step, pending = launched.step, launched.pending
        choices = self._engine.read(pending)
        self.busy_since, now = None, time.perf_counter()
        self._mark, seconds = now, now - launched.at
        self._scheduler.read(step)
        self.spent[pending.bucket] = self.spent.get(pending.bucket, 0.0) + seconds
        if isinstance(step, Chunk):
            self._chunks.observe(step.end - step.start, seconds)
        live = step.end - step.start if isinstance(step, Chunk) else len(step.sequences)
        self._metrics.step(
            pending.bucket,
            seconds=seconds,
            host_seconds=launched.host_seconds,
            live=live,
            padding=self._rows[pending.bucket] - live,
            replayed=self._engine.executor.fallbacks == launched.fallbacks,
        )
        if isinstance(step, Chunk) and not step.last:
            return
        gaps: list[float] = []
        for sequence, choice in zip(step.sequences, choices, strict=True):
            sequence.spoiled |= choice.status != 0
            if not sequence.over:
                self._take(sequence, choice, now, gaps)
        self._metrics.token_gaps(gaps)

    def _take(self, sequence: Sequence, choice: Choice, now: float, gaps: list[float]) -> None:
        try:
            events = sequence.take(choice)
            if not sequence.over:
                self._restrict(sequence)
        except QpackError as error:
            self._fail(sequence, error)
            return
        if sequence.last_token_at:
            gaps.append(now - sequence.last_token_at)
        else:
            job = sequence.job
            self._metrics.first_token(now - job.submitted, prompt=len(job.prompt), cached=sequence.cached)
        sequence.last_token_at = now
        for event in events:
            self._emit(sequence.job, event)

    def _restrict(self, sequence: Sequence) -> None:
        if sequence.job.grammar is not None:
            self._engine.restrict(sequence.slot, sequence.job.grammar.mask)

    def _fail(self, sequence: Sequence, error: QpackError) -> None:
        sequence.over = True
        self._emit(sequence.job, Failed(error))

    def _emit(self, job: Job, event: Event) -> None:
        self._outbox.append((job, event))
        if isinstance(event, (Finished, Failed)):
            self._jobs.pop(job, None)
