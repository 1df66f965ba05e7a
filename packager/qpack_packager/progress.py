"""Long work tells how far it is, on stderr: a bar on a terminal, plain lines elsewhere, JSON events on request."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal, Protocol

from qpack_schemas.terminal import is_plain

Mode = Literal["auto", "plain", "json"]
Unit = Literal["", "bytes"]


class Step(Protocol):
    def __call__(self, unit: str, amount: int = 1, /) -> None:
        """`unit` has just been finished; it was `amount` of the phase's total."""


class Progress:
    def __init__(self, mode: Mode = "auto"):
        self.mode = mode if mode != "auto" else "plain" if is_plain(sys.stderr) or find_spec("rich") is None else "bar"

    def note(self, message: str) -> None:
        """Something a person should know that is no error."""
        self._event({"event": "note", "message": message}, f"note: {message}")

    @contextmanager
    def phase(self, name: str, total: int, unit: Unit = "") -> Iterator[Step]:
        """A phase of `total` units of work, or bytes of it: then its rate and what remains of it are told as well."""
        if self.mode == "bar":
            with self._bar(name, total, unit) as advance:
                yield advance
            return
        self._event({"event": "phase", "phase": name, "total": total}, f"{name} ({_amount(total, unit)})")
        done, tenths, begun, last = 0, 0, time.monotonic(), time.monotonic()

        def step(finished: str, amount: int = 1) -> None:
            nonlocal done, tenths, last
            done += amount
            before, last = last, time.monotonic()
            event: dict[str, object] = {"event": "step", "phase": name, "done": done, "total": total, "unit": finished}
            plain = f"  {name}: {_amount(done, unit)} of {_amount(total, unit)}"
            if unit:
                rate = done / max(last - begun, 1e-9)
                left = (total - done) / rate if rate else 0.0
                event |= {"seconds": round(last - before, 3), "bytes_per_second": round(rate)}
                event |= {"seconds_left": round(left, 1)}
                plain += f", {rate / 1e6:,.0f} MB/s, {left:.0f} s left"
            if total and done * 10 // total == tenths:
                plain = ""
            tenths = done * 10 // total if total else 0
            self._event(event, plain)

        yield step

    @contextmanager
    def _bar(self, name: str, total: int, unit: Unit) -> Iterator[Step]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        whole = Column(no_wrap=True)  # where it is narrow, the bar gives way
        amounts = (DownloadColumn, TransferSpeedColumn) if unit else (MofNCompleteColumn,)
        shown = [column(table_column=whole) for column in (*amounts, TimeRemainingColumn)]
        columns = [TextColumn("{task.description}"), BarColumn(None), *shown]
        with RichProgress(*columns, console=Console(stderr=True), transient=True, expand=True) as bars:
            task = bars.add_task(name, total=total)
            yield lambda finished, amount=1: bars.advance(task, amount)

    def _event(self, event: dict[str, object], plain: str) -> None:
        line = json.dumps(event, ensure_ascii=True) if self.mode == "json" else plain
        if line:
            print(line, file=sys.stderr, flush=True)


def _amount(count: int, unit: Unit) -> str:
    return f"{count / 1e6:,.1f} MB" if unit else str(count)
