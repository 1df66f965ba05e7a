"""Piece `parity`: every kernel of every bucket, one launch after the other, against the reference's instructions.

A step goes through its launch table without the graph. Around every run of instructions the buffers are downloaded, and
the reference computes the run again from what the device held before it; so an error shows where it is made. State and
work hold NaN at the beginning: what is read before it is written shows too.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from qpack_runtime.cuda.executor import CudaExecutor
from qpack_runtime.engine import Engine
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.manifest import Bucket

from .compare import compare, floor_of
from .outcome import Line, Outcome, Settings
from .recompute import Recompute, Values
from .runs import Run, runs_of
from .steps import DRAWN, GREEDY, buckets_of, decode, fill, prefill, random_tokens

SMALL_BYTES = 200 << 20  # of weights: up to here every run is compared, beyond it the first and the last of each kind
ROWS = 16  # compared where rows don't depend on each other


class Inspector:
    """Compares the runs of one step; told before each launch, and at the end. `lines` collects what was found."""

    def __init__(self, bundle: Bundle, executor: CudaExecutor):
        self._bundle, self._executor = bundle, executor
        everything = bundle.manifest["memory"]["weights_bytes"] <= SMALL_BYTES
        self._recompute: dict[str, Recompute] = {}
        self._runs: dict[str, dict[int, Run | None]] = {}  # program -> first launch -> run, None if it is not compared
        for kind, table in bundle.tables[executor.target].items():
            program = bundle.programs[kind]
            self._recompute[kind] = Recompute(bundle, program, table)
            runs = runs_of(bundle, executor.target, program, table)
            chosen = (
                runs if everything else list({**_last_of_each(runs), **_last_of_each(runs[::-1], "first ")}.values())
            )
            self._runs[kind] = {run.begin: run if run in chosen else None for run in runs}
        self.lines: dict[tuple[str, ...], Line] = {}
        self.failures: list[str] = []
        self.compared = 0
        self._open: tuple[Run, Values] | None = None

    def begin(self, bucket: Bucket, live: int) -> None:
        self._bucket, self._live = bucket, live

    def before(self, index: int) -> None:
        """Launch `index` comes next."""
        runs = self._runs[self._bucket["program"]]
        if index in runs:
            self.finish()
            if (run := runs[index]) is not None:
                self._open = run, {name: self._download(name) for name in run.reads}

    def finish(self) -> None:
        """All launches of the run that is open are enqueued."""
        if self._open is None:
            return
        (run, before), self._open = self._open, None
        rows = self._bucket["rows"]
        try:
            wanted, lines = self._recompute[self._bucket["program"]].run(run, before, rows, self._live, ROWS)
        except (IndexError, OverflowError, ValueError) as error:  # positions or tokens that no right kernel leaves
            self.failures.append(f"{self._bucket['name']}: what {run.functions} is given makes no sense: {error}")
            return
        for name in run.writes:
            got = self._download(name)
            if name in run.updates:  # but for the scratch slot, which is the last line
                self._judge(run, name, got[:-1], wanted[name][:-1])
            else:
                self._judge(run, name, got[lines[name]], wanted[name][lines[name]])

    def _judge(self, run: Run, name: str, got: np.ndarray, wanted: np.ndarray) -> None:
        program = self._bundle.programs[self._bucket["program"]]
        buffer = program.buffers.get(name) or self._executor.memory.shared[name]
        floats = any(program.buffers[one].dtype == program.activation for one in run.elided)
        hidden = floats or any(instruction.op == "attention" for instruction in run.instructions)
        found = compare(
            got, wanted, buffer.dtype, floor_of(program.activation, hidden=hidden), garbage=name in run.updates
        )
        self.compared += 1
        key = program.kind, run.ops, run.functions, buffer.dtype
        begun = dict(zip(("program", "instructions", "kernels", "dtype"), key, strict=True))
        line = self.lines.setdefault(key, {**begun, "compared": 0, "relative error": 0.0, "of what is allowed": 0.0})
        line["compared"] += 1
        line["relative error"] = max(line["relative error"], found.relative)
        line["of what is allowed"] = max(line["of what is allowed"], found.share)
        if found.share > 1:
            values = f"{got[found.place]!s}, the reference {wanted[found.place]!s}" if found.place else ""
            place = f"{self._bucket['name']}: {name}{list(found.place)}"
            self.failures.append(f"{place} of {run.functions} is {values} ({found.share:.3g} of what is allowed)")

    def _download(self, name: str) -> np.ndarray:
        return self._recompute[self._bucket["program"]].download(self._executor, self._bucket["name"], name)


def check_parity(path: Path, settings: Settings) -> Outcome:
    """The outcome for the bundle at `path`."""
    bundle = open_bundle(path, digests=False)
    executor = CudaExecutor(bundle, allow_ptx=settings.allow_ptx)
    fill(executor, "state", 0xFF)
    fill(executor, "work", 0xFF)
    inspector = Inspector(bundle, executor)
    launch = partial(executor.launch_eagerly, before=inspector.before)
    for bucket, live, step in _steps(bundle, executor, settings):
        inspector.begin(bucket, live)
        step(launch)
        inspector.finish()
    lines = sorted(inspector.lines.values(), key=lambda line: -line["of what is allowed"])
    functions = {line["kernels"] for line in lines}
    return Outcome(
        f"{inspector.compared} buffers behind {len(functions)} kinds of kernels were compared with the reference",
        inspector.failures,
        {"Instructions against the reference": lines},
    )


def _steps(
    bundle: Bundle, executor: CudaExecutor, settings: Settings
) -> Iterator[tuple[Bucket, int, "partial[object]"]]:
    """Steps to inspect: bucket, rows that are no padding, and what takes a way to launch. Prompts before a decode step
    run as graphs, uninspected."""
    engine, slots = Engine(executor, bundle.manifest), bundle.manifest["slots"]
    for number, bucket in enumerate(buckets_of(bundle, "prefill")):
        slot, start = number % slots, 0
        engine.admit(slot, DRAWN if slot % 2 else GREEDY)
        for length in (bucket["rows"], max(1, bucket["rows"] * 3 // 4)):  # whole, then from another start and padded
            length = min(length, bucket["context"] - 1 - start)
            if length > 0:
                tokens = random_tokens(bundle, length, seed=100 * number + start)
                yield bucket, length, partial(prefill, executor, bucket, slot, start, tokens)
                start += length
    for bucket in buckets_of(bundle, "decode"):
        for slot in range(bucket["rows"]):
            length = min(settings.prompt if slot == 0 else 3 + 2 * slot, bucket["context"] - 3)
            engine.prefill(slot, random_tokens(bundle, length, seed=slot), DRAWN if slot % 2 else GREEDY)
        rows = list(range(bucket["rows"]))[::-1]
        for chosen in [rows, rows[1:]] if len(rows) > 1 else [rows]:
            yield bucket, len(chosen), partial(decode, executor, bucket, chosen, slots)


def _last_of_each(runs: list[Run], prefix: str = "") -> dict[str, Run]:
    return {prefix + " ".join(run.kernels): run for run in runs}
