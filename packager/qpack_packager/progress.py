"""Long work tells how far it is, on stderr: a bar on a terminal, plain lines elsewhere, JSON events on request."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Mode = Literal["auto", "plain", "json"]


Step = Callable[[str], None]  # called with what has just been finished, once per unit of work


class Progress:
    def __init__(self, mode: Mode = "auto"):
        self.mode = "bar" if mode == "auto" and sys.stderr.isatty() else "plain" if mode == "auto" else mode

    def note(self, message: str) -> None:
        """Something a person should know that is no error."""
        self._event({"event": "note", "message": message}, f"note: {message}")

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Step]:
        """A phase of `total` units of work."""
        if self.mode == "bar":
            with self._bar(name, total) as advance:
                yield advance
            return
        self._event({"event": "phase", "phase": name, "total": total}, f"{name} ({total})")
        done, tenths = 0, 0

        def step(unit: str) -> None:
            nonlocal done, tenths
            done += 1
            plain = "" if done * 10 // total == tenths else f"  {name}: {done} of {total}"
            tenths = done * 10 // total
            self._event({"event": "step", "phase": name, "done": done, "total": total, "unit": unit}, plain)

        yield step

    @contextmanager
    def _bar(self, name: str, total: int) -> Iterator[Step]:
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        with RichProgress(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task(name, total=total)
            yield lambda unit: bars.advance(task)

    def _event(self, event: dict[str, object], plain: str) -> None:
        line = json.dumps(event, ensure_ascii=True) if self.mode == "json" else plain
        if line:
            print(line, file=sys.stderr, flush=True)
