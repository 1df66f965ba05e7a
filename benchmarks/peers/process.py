"""The parent's side of worker.py: one process per contender, which runs only while it is asked something."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]
INSTALL = "CMAKE_ARGS=-DGGML_NATIVE=ON pip install -r benchmarks/requirements.txt"
SHOWN = 2000  # characters of an error


class PeerError(Exception):
    """A contender can't go on; the text says why."""


class Worker:
    """A contender, loaded once. Between calls its process is stopped, so that no thread of it spins meanwhile.

    Every call raises PeerError if the library is absent, raises or crashes."""

    def __init__(self, name: str, checkpoint: Path, work: Path, threads: int):
        self.name = name
        self._log = work / f"{name}.log"
        command = [sys.executable, "-m", "peers.worker", name, str(checkpoint), str(work), str(threads)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                encoding="utf-8", bufsize=1,
            )  # fmt: skip
        self.pid = self._process.pid
        try:
            self.facts: dict[str, str] = self.ask("facts")
        except PeerError:
            self.close()
            raise

    def ask(self, call: str, **arguments: int) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        os.kill(process.pid, signal.SIGCONT)
        try:
            process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-SHOWN:]
            raise PeerError(f"its process ended with exit code {process.wait()}: {tail}")
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        said = json.loads(line)
        if "absent" in said:
            raise PeerError(f"{said['absent']} is not installed: {INSTALL}")
        if "error" in said:
            raise PeerError(said["error"][-SHOWN:])
        return said["answer"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
