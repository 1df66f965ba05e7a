"""A registry on loopback, Debian's docker-registry, and a road to it that counts and cuts."""

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONFIG = """\
version: 0.1
log: {{level: info, accesslog: {{disabled: false}}}}
storage: {{filesystem: {{rootdirectory: "{root}"}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:0", secret: "of these tests"}}
"""
# A user of registries that ask for one, and the bcrypt line of an htpasswd file.
USER, PASSWORD = "robot", "sesame"
HTPASSWD = "robot:$2b$04$eV77IAa1MhYJgEa9oyLhley7KlFSQEQfmZnK6ri4UR6LqbhQSDy8e\n"
WITH_PASSWORD = 'auth: {{htpasswd: {{realm: "tests", path: "{file}"}}}}\n'


class Registry:
    """`address` is host and port, `log` all that it has written so far."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes], log: Path):
        self.root, self._process, self._log = root, process, log
        self.address = f"127.0.0.1:{self._port()}"

    def blob(self, digest: str) -> Path:
        """Where it keeps the bytes of a blob."""
        hexadecimal = digest.removeprefix("sha256:")
        return self.root / "docker/registry/v2/blobs/sha256" / hexadecimal[:2] / hexadecimal / "data"

    def requests(self, method: str, path: str) -> list[int]:
        """The status of each request so far whose method and path fit."""
        text = self._log.read_text(encoding="utf-8")
        return [int(found) for found in re.findall(rf'"{method} [^ ]*{path}[^ ]* HTTP/1.1" ([0-9]+)', text)]

    def _port(self) -> int:
        while self._process.poll() is None:
            if found := re.search(r"listening on 127\.0\.0\.1:([0-9]+)", self._log.read_text(encoding="utf-8")):
                return int(found[1])
        raise AssertionError(self._log.read_text(encoding="utf-8"))


@contextmanager
def running_registry(folder: Path, *, password: bool = False) -> Iterator[Registry]:
    root = folder / "registry"
    text = CONFIG.format(root=root)
    if password:
        (folder / "htpasswd").write_text(HTPASSWD, encoding="ascii")
        text += WITH_PASSWORD.format(file=folder / "htpasswd")
    (folder / "config.yml").write_text(text, encoding="utf-8")
    log = folder / "log"
    with log.open("wb") as file:
        command = ["docker-registry", "serve", str(folder / "config.yml")]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield Registry(root, process, log)
    finally:
        process.kill()
        process.wait()


class Road:
    """A TCP proxy to `address`. `moved` counts bytes in both directions. A connection is cut when `cut_up[0]` more have
    gone to the registry, or `cut_down[0]` come from it: a number for each cut; the client learns of the former when the
    registry has, and so finds it ready. After `hold_down` bytes nothing comes from it any more, and `holds` is set."""

    def __init__(
        self,
        address: str,
        *,
        cut_up: list[int] | None = None,
        cut_down: list[int] | None = None,
        hold_down: int | None = None,
    ):
        self._hold_down = hold_down
        self.holds = threading.Event()
        self._to = address.rpartition(":")[0], int(address.rpartition(":")[2])
        self._cuts = {"up": list(cut_up or []), "down": list(cut_down or [])}
        self.moved = {"up": 0, "down": 0}
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.open: list[socket.socket] = []
        self._cut_off: set[socket.socket] = set()  # ends at the registry of which the client hears no more
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def cuts_left(self) -> int:
        return sum(map(len, self._cuts.values()))

    def __enter__(self) -> "Road":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._cut(*self.open)

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self.open += [near, far]
                for way, source, sink in (("up", near, far), ("down", far, near)):
                    threading.Thread(target=self._carry, args=(way, source, sink), daemon=True).start()

    def _carry(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    cuts = self._cuts[way]
                    through = data[: cuts[0]] if cuts else data
                    self.moved[way] += len(through)
                    if cuts:
                        cuts[0] -= len(through)
                    cut = bool(cuts) and not cuts[0]
                    if cut:
                        cuts.pop(0)
                    if way == "down" and self._hold_down is not None and self.moved[way] >= self._hold_down:
                        self.holds.set()
                        return
                if source not in self._cut_off:
                    sink.sendall(through)
                if cut and way == "up":
                    self._cut_off.add(sink)
                    sink.shutdown(socket.SHUT_WR)
                    sink.settimeout(60)
                    while sink.recv(1 << 16):
                        pass
                if cut:
                    break
        self._cut(source, sink)

    @staticmethod
    def _cut(*ends: socket.socket) -> None:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
