"""What the three health endpoints answer: alive, started, ready."""

import time
from dataclasses import dataclass, field
from typing import Any

from qpack_runtime.boot_watch import BootWatch

STALLED_AFTER = 120.0  # seconds of one step: no device that is alive takes so long


@dataclass
class Readiness:
    """Written by whoever learns something, read by the endpoints."""

    watch: BootWatch = field(default_factory=BootWatch)
    booted: bool = False  # the probes agreed and a first step has run
    draining: bool = False
    failure: str | None = None  # what ended the boot or the engine
    began: float = field(default_factory=time.monotonic)  # seconds

    @property
    def ready(self) -> bool:
        return self.booted and not self.draining and self.failure is None

    def livez(self, busy_since: float | None) -> tuple[int, dict[str, Any]]:
        """Status and body. `busy_since`: time.monotonic() of the step under way."""
        stalled = busy_since is not None and time.monotonic() - busy_since > STALLED_AFTER
        problem = self.failure or (f"a step has not ended for {STALLED_AFTER:.0f} s" if stalled else None)
        return (200, {"alive": True}) if problem is None else (503, {"alive": False, "problem": problem})

    def startupz(self) -> tuple[int, dict[str, Any]]:
        watch = self.watch
        body = {
            "started": self.booted,
            "phase": watch.phase,
            "elapsed_seconds": round(sum(watch.seconds.values()) if self.booted else time.monotonic() - self.began, 3),
            "phases": {phase: round(seconds, 3) for phase, seconds in watch.seconds.items()},
        }
        return (200 if self.booted else 503), body

    def readyz(self) -> tuple[int, dict[str, Any]]:
        watch = self.watch
        buckets = {name: name in watch.ready for name in watch.expected}
        body = {
            "ready": self.ready,
            "phase": "failed" if self.failure else "draining" if self.draining else watch.phase,
            "prefill_graph_ready": _all_of("prefill", buckets),
            "decode_graph_ready": _all_of("decode", buckets),
            "tokenizer_ready": "tokenizer" in watch.seconds,
            "buckets": buckets,
        }
        return (200 if self.ready else 503), body


def _all_of(program: str, buckets: dict[str, bool]) -> bool:
    """Whether all buckets of a program are ready; none are before the bundle is open."""
    mine = [ready for name, ready in buckets.items() if name.startswith(f"{program}-")]
    return bool(mine) and all(mine)
