"""The example for supervisor, run by supervisor."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from configparser import RawConfigParser
from contextlib import suppress
from pathlib import Path

import pytest

from children import children_of
from server_process import MAIN, PATIENCE

EXAMPLE = Path(__file__).parents[2] / "deploy" / "supervisor" / "qpack-runtime.conf"
PROGRAM = "program:qpack-runtime"
OWN = ("LC_ALL", "PYTHONUTF8", "PYTHONWARNINGS", "PYTHONWARNDEFAULTENCODING")  # of our tests, too strict for supervisor


class Supervised:
    """supervisord with the example, for this Python, user and folder."""

    def __init__(self, bundle: Path, folder: Path):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (folder / "serve.py").write_text(MAIN, encoding="utf-8")
        parser = RawConfigParser(comment_prefixes=(";",))
        parser.read(EXAMPLE, encoding="utf-8")
        program = parser[PROGRAM]
        start, serve, _ = program["command"].split()
        assert start.endswith("/qpack-runtime")
        program["command"] = f"{sys.executable} {folder / 'serve.py'} {serve} {bundle} --port {self.port}"
        program["stderr_logfile"] = str(folder / "serve.log")
        del program["user"]
        parser["supervisord"] = {"logfile": str(folder / "supervisord.log"), "pidfile": str(folder / "pid")}
        self.log, configuration = folder / "serve.log", folder / "supervisord.conf"
        with configuration.open("w", encoding="utf-8") as file:
            parser.write(file)
        command = [sys.executable, "-m", "supervisor.supervisord", "--nodaemon", "--configuration", str(configuration)]
        environment = {name: text for name, text in os.environ.items() if name not in OWN}
        self.process = subprocess.Popen(command, env=environment)

    def pid(self) -> int:
        """The server's; 0 while there is none."""
        return next(iter(children_of(self.process.pid)), 0)

    def ready(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            try:
                connection.request("GET", "/readyz")
                return connection.getresponse().status == 200
            finally:
                connection.close()
        return False


@pytest.fixture
def supervised(tiny_bundle: Callable[[str], Path], tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(tiny_bundle("tiny-qwen3"), tmp_path)
    yield supervised
    if supervised.process.poll() is None:
        supervised.process.terminate()  # it ends what it has started
        supervised.process.wait(PATIENCE)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.nightly
def test_supervisor_serves_starts_again_and_stops(supervised: Supervised):
    until(supervised.ready)
    first = supervised.pid()
    os.kill(first, signal.SIGKILL)
    until(lambda: supervised.pid() not in (0, first))
    until(supervised.ready)
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.process.wait(PATIENCE) == 0
    assert '"event": "ended"' in supervised.log.read_text(encoding="utf-8").splitlines()[-1]
