"""What a boot is doing and how long each phase took, for whoever waits for it."""

import time


class BootWatch:
    """Written by the thread that boots, read by any other: each field changes by one assignment."""

    def __init__(self) -> None:
        self.phase: str | None = None  # under way; None before the first and after the last
        self.seconds: dict[str, float] = {}  # per phase that has ended
        self.expected: tuple[str, ...] = ()  # all buckets, as soon as the bundle is open
        self.ready: tuple[str, ...] = ()  # buckets that can run
        self.started = self._last = time.perf_counter()

    def begin(self, phase: str) -> None:
        """`phase` begins, and the one before ends."""
        self.end()
        self.phase = phase

    def end(self) -> None:
        """The phase under way ends."""
        now = time.perf_counter()
        if self.phase is not None:
            self.seconds = {**self.seconds, self.phase: now - self._last}
        self.phase, self._last = None, now

    def bucket_ready(self, name: str) -> None:
        self.ready = (*self.ready, name)
