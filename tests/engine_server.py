"""An engine thread without HTTP: jobs in, events kept."""

import threading
from collections.abc import Callable
from typing import Any

from qpack_runtime.serve.engine.job import Event, Failed, Finished, Job, Piece
from qpack_runtime.serve.engine.thread import Delivery, EngineThread
from qpack_runtime.serve.metrics import Metrics
from qpack_schemas.errors import QpackError


class EngineServer:
    """Runs the thread on `booted`, or on what `boot` gives. `over` waits for the end of jobs."""

    def __init__(self, booted: Any, boot: Callable[..., Any] | None = None):
        self.events: dict[Job, list[Event]] = {}
        self.batches: list[Delivery] = []
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        self.metrics = Metrics([])
        if booted is not None:
            self.metrics.booted(
                version="", bundle_id="", model="", mode="", device=booted.device, slots=booted.engine.slots,
                queue_limit=1, buckets=booted.bundle.manifest["capture_order"], arena_bytes={}, phase_seconds={},
                capture_seconds=0.0,
            )  # fmt: skip
        give_booted: Callable[[], Any] = boot or (lambda: booted)
        self.thread = EngineThread(
            give_booted, metrics=self.metrics, longest_wait=0.1, on_booted=lambda booted: None,
            deliver=self._deliver, on_end=self._end,
        )  # fmt: skip
        self.thread.start()

    def submit(self, *jobs: Job) -> None:
        self.thread.submit(jobs)

    def over(self, *jobs: Job) -> None:
        with self._changed:
            self._changed.wait_for(lambda: all(self._is_over(one) for one in jobs))

    def begun(self, one: Job) -> None:
        with self._changed:
            self._changed.wait_for(lambda: any(isinstance(event, Piece) for event in self.events.get(one, [])))

    def output(self, one: Job) -> list[int]:
        end = self.events[one][-1]
        assert isinstance(end, Finished)
        return list(end.output)

    def stop(self) -> None:
        self.thread.stop(QpackError("the test is over"))
        self.ended.wait()

    def _is_over(self, one: Job) -> bool:
        return bool(self.events.get(one)) and isinstance(self.events[one][-1], (Finished, Failed))

    def _deliver(self, batch: Delivery) -> None:
        with self._changed:
            self.batches.append(list(batch))
            for one, event in batch:
                self.events.setdefault(one, []).append(event)
            self._changed.notify_all()

    def _end(self, error: BaseException | None) -> None:
        self.failure = error
        self.ended.set()
