"""The runtime as a child process, since the packager doesn't import it: windows go in, logits come out of its pipe."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NoReturn

import numpy as np

from qpack_schemas.errors import QpackError

RUNTIME = (sys.executable, "-P", "-m", "qpack_runtime.cli")  # of this installation; -P: not of the working directory
FRAME = struct.Struct("<3i")  # as `qpack-runtime logits` says: first window, windows, position


@dataclass(frozen=True)
class Device:
    """Flags of the runtime; None is its own default."""

    name: str | None = None  # cpu, cuda or reference
    threads: int | None = None


class LogitStream:
    """What one child computes. `header` is its first line: windows, rows of each, batch, vocab, device, mode, facts,
    notes."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Path):
        assert process.stdout is not None
        self._process, self._errors, self._pipe = process, errors, process.stdout
        self.header: dict[str, Any] = json.loads(self._pipe.readline() or self._fail())

    def read(self, first: int, windows: int, position: int) -> np.ndarray:
        """float32 [windows, vocab] of the next step, which must be that one. Raises QpackError in the child's words and
        with its exit code if it has ended."""
        size = 4 * windows * self.header["vocab"]
        data = self._pipe.read(FRAME.size + size)
        if len(data) < FRAME.size + size:
            self._fail()
        if (found := FRAME.unpack_from(data)) != (first, windows, position):
            raise AssertionError(f"the runtime sent step {found} for {(first, windows, position)}")
        return np.frombuffer(data, "<f4", offset=FRAME.size).reshape(windows, -1)

    def end(self) -> None:
        """Nothing is left, and the child ended well."""
        if self._pipe.read(1):
            raise AssertionError("the runtime sent more steps than there are windows")
        if self._process.wait():
            self._fail()

    def _fail(self) -> NoReturn:
        code, words = self._process.wait(), self._errors.read_text(encoding="utf-8", errors="replace").strip()
        if code < 0:
            raise QpackError(
                f"the runtime was ended by {signal.Signals(-code).name}",
                remedy="SIGKILL is how a host ends what takes too much memory",
            )
        message, _, remedy = re.split("^error: ", words, flags=re.MULTILINE)[-1].partition("\n  remedy: ")
        error = QpackError(message or f"the runtime ended with exit code {code} and no word", remedy=remedy)
        error.exit_code = code or QpackError.exit_code
        raise error


@contextmanager
def running(bundle: Path, windows: np.ndarray, mode: str | None, device: Device) -> Iterator[LogitStream]:
    """The runtime fed with `windows`, int32 [windows, length]; it ends with the block. `mode` is fast, exact or None,
    the runtime's own. Raises QpackError as the runtime does if it can't boot."""
    with TemporaryDirectory() as name:
        given, errors = Path(name, "windows.npy"), Path(name, "stderr")
        np.save(given, windows)
        # The digests have been compared when the bundle was opened here.
        flags = ["--windows", str(given), "--verify", "quick"]
        for flag, value in (("--mode", mode), ("--device", device.name), ("--threads", device.threads)):
            flags += [] if value is None else [flag, str(value)]
        with errors.open("wb") as stderr:
            process = _start([*RUNTIME, "logits", str(bundle.absolute()), *flags], stderr)
        try:
            yield LogitStream(process, errors)
        finally:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()
            process.wait()


def _start(command: list[str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},  # what it says is read as that
    )
