"""Piece `host`: what `qpack-runtime doctor` finds, with the clocks."""

from dataclasses import asdict
from pathlib import Path

from qpack_runtime.cuda.doctor import diagnose
from qpack_runtime.cuda.driver import Driver
from qpack_runtime.cuda.host import read_host
from qpack_runtime.cuda.nvml import read_gauges

from .outcome import Line, Outcome, Settings


def describe_gpu() -> Line:
    """GPU 0 and its gauges, by name. Raises UnsupportedError if there is none."""
    gauges = read_gauges()
    host = asdict(read_host(Driver()))
    return {**host, **({"gauges": gauges} if isinstance(gauges, str) else asdict(gauges))}


def check_host(path: Path, settings: Settings) -> Outcome:
    """The outcome for the bundle at `path`. Warnings are no failures: they say why a host is slow."""
    found = diagnose(path, allow_ptx=settings.allow_ptx)
    lines: list[Line] = [
        {"check": one.check, "level": one.level, "found": one.found, "remedy": one.remedy} for one in found
    ]
    failures = [f"{one.check}: {one.found}; {one.remedy}" for one in found if one.level == "failure"]
    target = next((one.found for one in found if one.check == "target"), "")
    return Outcome("the bundle can't run here" if failures else f"runs as {target}", failures, {"Doctor": lines})
