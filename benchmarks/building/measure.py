"""The measurement: every contender once a round, each step a process of its own, with nothing left to write before."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .contenders import OUTPUT, Contender

FOLDER = Path(__file__).parent
SHOWN = 2000  # characters of what a step that failed has said


@dataclass(frozen=True)
class Step:
    """What one process took, its own children included."""

    seconds: float
    cpu_seconds: float  # of all threads
    peak_bytes: int  # resident, of the largest process


@dataclass(frozen=True)
class Build:
    """One build by one contender."""

    steps: Mapping[str, Step]
    result_bytes: int

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps.values())

    @property
    def cpu_seconds(self) -> float:
        return sum(step.cpu_seconds for step in self.steps.values())

    @property
    def peak_bytes(self) -> int:
        return max(step.peak_bytes for step in self.steps.values())


class StepError(Exception):
    """A step ended with an error; the text says which and what it said."""


@dataclass
class Measured:
    builds: dict[str, list[Build]]  # contender -> one a round
    left_out: dict[str, str] = field(default_factory=dict)  # contender -> why


def measure(
    contenders: Sequence[Contender], checkpoint: Path, work: Path, rounds: int, say: Callable[[str], None]
) -> Measured:
    """What a build leaves in `work` is gone when the next begins. Who fails is left out from then on."""
    measured = Measured({contender.name: [] for contender in contenders})
    for number in range(rounds):
        first = number % max(1, len(contenders))  # nobody always comes first
        for contender in [*contenders[first:], *contenders[:first]]:
            if contender.name in measured.left_out:
                continue
            say(f"round {number + 1} of {rounds}: {contender.name}")
            read_all(checkpoint)
            try:
                measured.builds[contender.name].append(build(contender, work))
            except StepError as error:
                measured.left_out[contender.name] = str(error)
    return measured


def build(contender: Contender, work: Path) -> Build:
    """Raises StepError."""
    folder = work / "build"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.sync()
    steps: dict[str, Step] = {}
    try:
        for name, command in contender.steps.items():
            arguments = [part.replace(OUTPUT, str(folder)) for part in command]
            steps[name] = run(arguments, work / f"{contender.name}.log", name)
        return Build(steps, _size(folder / contender.result))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(command: Sequence[str], log: Path, name: str) -> Step:
    """Raises StepError. run_step.py tells what the command took."""
    launcher = [sys.executable, "-IS", str(FOLDER / "run_step.py"), str(log), *command]
    ran = subprocess.run(launcher, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    taken = json.loads(ran.stdout)
    if "error" in taken:
        raise StepError(f"{name}: {command[0]}: {taken['error']}")
    if (code := taken.pop("exit_code")) != 0:
        tail = log.read_text(encoding="utf-8", errors="replace")[-SHOWN:]
        raise StepError(f"{name} ended with exit code {code}: {tail}")
    return Step(**taken)


def read_all(checkpoint: Path) -> None:
    """So that everybody finds the checkpoint in memory, as far as it fits."""
    block = bytearray(1 << 22)
    for path in sorted(checkpoint.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


def _size(result: Path) -> int:
    files = [path for path in result.rglob("*") if path.is_file()] if result.is_dir() else [result]
    return sum(path.stat().st_size for path in files)
