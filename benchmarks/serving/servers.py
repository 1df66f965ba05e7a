"""The servers that are measured: ours, llama.cpp's, or one that runs already; one stands still in another's turn.

llama-server is in no package; it is compiled for this host from the source that llama-cpp-python brings, the same
llama.cpp as benchmarks/requirements.txt names:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36 && tar xzf llama_cpp_python-0.3.36.tar.gz
    cmake -S llama_cpp_python-0.3.36/vendor/llama.cpp -B llama -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DGGML_NATIVE=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
    cmake --build llama --target llama-server llama-quantize -j 2

On a processor with AMX, GCC 12 compiles a llama-server that ends with an illegal instruction (tilezero); with
-DCMAKE_C_FLAGS="$FLAGS" -DCMAKE_CXX_FLAGS="$FLAGS" and FLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" it runs.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from peers.worker import PR_SET_PDEATHSIG
from qpack_schemas.errors import QpackError, UsageError

HOST = "127.0.0.1"
SHOWN = 2000  # characters of a log
POLL_SECONDS = 0.05
OURS = [sys.executable, "-c", "from qpack_runtime.cli import main; main()"]  # qpack-runtime of this environment


@dataclass(frozen=True)
class Shape:
    """What all servers are made for."""

    slots: int
    context: int  # positions of each
    threads: int


@dataclass(frozen=True)
class Server:
    name: str
    host: str
    port: int
    facts: dict[str, str] = field(default_factory=dict)
    pid: int | None = None  # of one that was started here

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body; (0, b"") while nobody listens."""
        connection = HTTPConnection(self.host, self.port)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except ConnectionError:
            return 0, b""
        finally:
            connection.close()

    def model(self) -> str:
        """The name under which requests ask for it."""
        status, body = self.get("/v1/models")
        if status != 200:
            raise QpackError(f"answered {status} instead of 200", where=f"http://{self.host}:{self.port}/v1/models")
        return json.loads(body)["data"][0]["id"]

    @contextmanager
    def awake(self) -> Generator[None]:
        """Runs inside only, so that none of its threads is in another's way. One that was not started here always
        runs."""
        if self.pid is None:
            yield
            return
        os.kill(self.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


@contextmanager
def ours(bundle: Path, shape: Shape, queue: int) -> Generator[Server]:
    """`qpack-runtime serve` with room for `queue` requests that wait."""
    command = [*OURS, "serve", str(bundle), "--port", "0", "--threads", str(shape.threads), "--queue", str(queue)]
    facts = {"version": f"qpack {version('qpack-llm')}"}
    listening = re.compile(r'"event": "listening".*?"port": (\d+)')
    with _started(f"qpack {bundle.name}", command, listening, "/readyz", facts) as server:
        yield server


@contextmanager
def llama(gguf: Path, binary: Path, shape: Shape) -> Generator[Server]:
    """llama-server with continuous batching and a slot for each of ours. It keeps no states of other prompts in memory:
    no prompt comes twice, so that this would only cost."""
    command = [
        str(binary), "--model", str(gguf), "--host", HOST, "--port", "0", "--parallel", str(shape.slots),
        "--ctx-size", str(shape.slots * shape.context), "--threads", str(shape.threads), "--cont-batching",
        "--cache-ram", "0",
    ]  # fmt: skip
    said = subprocess.run([str(binary), "--version"], capture_output=True, encoding="utf-8", check=False)
    facts = {"version": "llama-server " + " ".join((said.stdout + said.stderr).split())}
    listening = re.compile(r"listening on http://[^\s:]+:(\d+)")
    with _started(f"llama-server {gguf.stem}", command, listening, "/health", facts) as server:
        yield server


def running(url: str) -> Server:
    """The server at `url`, http://HOST:PORT. Raises UsageError for anything else."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None or parts.path.strip("/"):
        raise UsageError(f"{url!r} is no address of a server", remedy="give http://HOST:PORT")
    return Server(url, parts.hostname, parts.port or 80)


@contextmanager
def _started(
    name: str, command: Sequence[str], listening: re.Pattern[str], ready: str, facts: dict[str, str]
) -> Generator[Server]:
    """A process that says its port in its log, matched by `listening`, and answers 200 at `ready` when it is. It stands
    still first. Raises QpackError with the end of its log if it ends before."""
    with _log() as log, _process(command, log) as process:
        port = 0
        while not port or Server(name, HOST, port).get(ready)[0] != 200:
            text = _read(log)
            if process.poll() is not None:
                raise QpackError(f"{name}: its process ended with exit code {process.returncode}: {text[-SHOWN:]}")
            port = int(found[1]) if (found := listening.search(text)) else 0
            time.sleep(POLL_SECONDS)
        server = Server(name, HOST, port, facts, process.pid)
        with server.awake():
            pass
        yield server


@contextmanager
def _process(command: Sequence[str], log: int) -> Generator[subprocess.Popen[bytes]]:
    """Ended by SIGTERM behind the block."""
    with subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=_die_with_parent) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


@contextmanager
def _log() -> Generator[int]:
    """A file in memory."""
    descriptor = os.memfd_create("log")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(log: int) -> str:
    return os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")


def _die_with_parent() -> None:
    """A process that is stopped doesn't see its parent go."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
