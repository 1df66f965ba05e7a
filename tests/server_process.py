"""A server in a process of its own, as its user starts it: its port, its log, what it holds, and how it ends."""

import http.client
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from children import children_of

# Behind a `patch`, so that a test can make a constant small or a step fail.
MAIN = "import sys; from qpack_runtime.cli import main; sys.argv[0] = 'qpack-runtime'; main()"
# A patch: steps that take long enough for a test to do something meanwhile.
SLOW_STEPS = """
import time
from qpack_runtime.engine import Engine
def slow(self, slots, decode=Engine.launch_decode):
    time.sleep(0.03)
    return decode(self, slots)
Engine.launch_decode = slow
"""
PATIENCE = 120  # seconds: a safety net, nothing is measured by it


class ServerProcess:
    """`qpack-runtime serve BUNDLE --port 0 ARGUMENTS`, killed at the end of the context if it still lives.

    `patch` is Python that runs in the server before anything else, `environment` what its environment has beside ours.
    `log` has the lines on stderr that are JSON, `plain` the others. `hears` leaves the process a stdin, which the patch
    may read."""

    def __init__(
        self,
        bundle: Path | str,
        *arguments: str,
        patch: str = "",
        hears: bool = False,
        environment: Mapping[str, str] | None = None,
    ):
        command = [sys.executable, "-c", f"{patch}\n{MAIN}", "serve", str(bundle), "--port", "0", *arguments]
        stdin = subprocess.PIPE if hears else subprocess.DEVNULL
        variables = {**os.environ, **(environment or {})}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, env=variables)
        self.pid = self.process.pid
        self.log: list[dict[str, Any]] = []
        self.plain: list[str] = []
        self._streams: list[Stream] = []
        self._said = threading.Condition()
        self._open = True  # whether more lines may come
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.wait()
        for stream in self._streams:
            stream.close()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    @property
    def port(self) -> int:
        return self.line("listening")["port"]

    def line(self, event: str) -> dict[str, Any]:
        """The first log line of this event, waited for. Raises AssertionError if the process ends without it."""
        with self._said:
            come = self._said.wait_for(lambda: self._first(event) or not self._open, PATIENCE)
            found = self._first(event)
        assert found, f"no {event!r} {'before the end' if come else 'in time'}\n{self.told()}"
        return found

    def ready(self) -> "ServerProcess":
        """Waits until requests are let in."""
        self.line("ready")
        status, body, _ = self.get("/readyz")
        assert status == 200, body
        return self

    def get(self, path: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON and headers of a GET, or of a POST with a `body`, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            data = None if body is None else json.dumps(body).encode("utf-8")
            connection.request("POST" if data else "GET", path, data, {"content-type": "application/json"})
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, json.loads(answer.read()), headers
        finally:
            connection.close()

    def stream(self, path: str, body: Any) -> "Stream":
        """A POST whose answer is read while it is made; closed with the context at the latest."""
        self._streams.append(stream := Stream(self.port, path, body))
        return stream

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once the process has ended and its last line was read."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def children(self) -> dict[int, int]:
        """The processes that the server has started: pid -> a descriptor that tells when it ends."""
        return {pid: os.pidfd_open(pid) for pid in children_of(self.pid)}

    def descriptors(self) -> list[str]:
        """What the open descriptors are, sorted, sockets and pipes without their numbers."""
        links = []
        for link in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                links.append(os.readlink(link).partition(":[")[0])
        return sorted(links)

    def sockets(self) -> int:
        return self.descriptors().count("socket")

    def has_closed(self, sockets: int) -> bool:
        """Waits until no more than so many sockets are open. False: some stay open, whatever their deadlines."""
        end = time.monotonic() + PATIENCE
        while self.sockets() > sockets and time.monotonic() < end:
            time.sleep(0.01)
        return self.sockets() <= sockets

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def resident_bytes(self) -> int:
        """Rss of smaps_rollup, which is exact; VmRSS of status is a sum of counters that lag behind per thread."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

    def complaints(self) -> list[str]:
        """Lines that a server in good health never writes: errors, tracebacks, and what is no JSON."""
        bad = [line for line in self.log if line["level"] in ("error", "critical") or "traceback" in line]
        return [*map(str, bad), *self.plain]

    def told(self) -> str:
        """The end of the log, for the message of a failure."""
        return "\n".join([*map(str, self.log[-20:]), *self.plain[-40:]])

    def _first(self, event: str) -> dict[str, Any] | None:
        return next((line for line in self.log if line["event"] == event), None)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            line = raw.decode("utf-8").rstrip("\n")
            with self._said:
                if line.startswith("{"):
                    self.log.append(json.loads(line))
                else:
                    self.plain.append(line)
                self._said.notify_all()
        with self._said:
            self._open = False
            self._said.notify_all()


class Stream:
    """An answer that is read while it is made: `event` by `event`, each the text behind `data: `."""

    def __init__(self, port: int, path: str, body: dict[str, Any]):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        data = json.dumps({**body, "stream": True}).encode("utf-8")
        self._connection.request("POST", path, data, {"content-type": "application/json"})
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def __iter__(self) -> Iterator[str]:
        for line in self._answer:
            if line.startswith(b"data: "):
                yield line[6:].decode("utf-8").rstrip("\n")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def ended(descriptor: int) -> bool:
    """Whether the process of a descriptor that `children` gave ends."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    try:
        return bool(poll.poll(PATIENCE * 1000))
    finally:
        os.close(descriptor)
