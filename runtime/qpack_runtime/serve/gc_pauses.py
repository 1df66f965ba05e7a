"""How long Python's garbage collector holds everything up, per generation."""

import gc
import time
from typing import Any

from qpack_runtime.serve.histogram import OneWriterHistogram

EDGES = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)  # seconds


class GcPauses(OneWriterHistogram):
    """Times the collections between `install` and `uninstall`.

    A collection may begin in any thread and amid any statement, also while that thread holds the lock of a metric: a
    locked histogram would wait for itself. There is only one collection at a time, and so only one writer. Where
    the stack has no room left to look at the clock, as at the bottom of JSON that is nested too deeply, it isn't
    counted."""

    def __init__(self) -> None:
        super().__init__("qpack_gc_pause_seconds", "Pauses for garbage collection.", EDGES, "generation")
        self._generations = [self.series(str(generation)) for generation in range(len(gc.get_threshold()))]
        self._began: float | None = None

    def install(self) -> None:
        gc.callbacks.append(self._on_collection)

    def uninstall(self) -> None:
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        began, self._began = self._began, None
        try:
            if phase == "start":
                self._began = time.perf_counter()
            elif began is not None:
                self._generations[info["generation"]].observe(time.perf_counter() - began)
        except RecursionError:
            pass
