"""A process in an image, shut in as by `docker run --read-only --cap-drop ALL --security-opt no-new-privileges`: with
process numbers and mounts of its own, without capabilities, nothing to write to but /tmp. The network is the caller's.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .buildah import Image

PATIENCE = 60  # seconds: a safety net

# $1: the image's files; then pairs of a folder and where it is seen, "--", and the command that becomes process 1.
START = """
root=$1; shift
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --bind /sys "$root/sys"
mount -o remount,bind,ro "$root/sys"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/dev"
mkdir -m 1777 "$root/dev/shm"
for device in null zero random urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
while [ "$1" != -- ]; do
    mount --bind "$1" "$root$2"
    [ "${2#/out}" != "$2" ] || mount -o remount,bind,ro "$root$2"
    shift 2
done
shift
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,+sys_chroot,+setuid,+setgid "$@"
"""
NAMESPACES = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--propagation", "private")


class Container:
    """`command` in `image`, killed at the end of the context if it lives. `volumes` are read-only, except /out."""

    def __init__(self, image: Image, command: Sequence[str], volumes: Mapping[Path, str], log: Path):
        for target in volumes.values():  # as Docker makes them
            Path(f"{image.root}{target}").mkdir(exist_ok=True)
        pairs = [str(part) for pair in volumes.items() for part in pair]
        uid, _, gid = (image.user or "0").partition(":")
        self._image, self._ids, self._log = image, (uid, gid or uid), log
        confine = ["chroot", f"--userspec={uid}:{gid or uid}", "--groups=", str(image.root), *self._environment()]
        start = ["unshare", *NAMESPACES, "sh", "-euc", START, "sh", str(image.root), *pairs, "--", *confine, *command]
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(start, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._children():  # process 1, and all others with it; unshare ends behind it
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(PATIENCE)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def first(self) -> int:
        """This host's number of the container's process 1, once that is the image's program."""
        end = time.monotonic() + PATIENCE
        while self.alive and time.monotonic() < end:
            for pid in self._children():
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/root") == str(self._image.root) and _uid(pid) == self._ids[0]:
                        return pid
            time.sleep(0.001)
        raise AssertionError(f"the container did not start: {self.said()}")

    def processes(self) -> list[int]:
        """This host's numbers of all its processes."""
        namespace, found = os.readlink(f"/proc/{self.first()}/ns/pid"), list[int]()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "ns/pid") == namespace:
                    found.append(int(entry.name))
        return found

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Beside process 1, as `docker exec` does it."""
        enter = ["nsenter", "--target", str(self.first()), "--mount", "--pid", "--root", "--wd"]
        enter += ["--setuid", self._ids[0], "--setgid", self._ids[1], *self._environment(), *command]
        return subprocess.run(enter, check=False, capture_output=True, encoding="utf-8", timeout=PATIENCE)

    def stop(self, number: int) -> tuple[int, float]:
        """Signals process 1; its exit code, and how many seconds that took."""
        begin = time.monotonic()
        os.kill(self.first(), number)
        return self.wait(), time.monotonic() - begin

    def wait(self, seconds: float = PATIENCE) -> int:
        return self._process.wait(seconds)

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _children(self) -> list[int]:
        try:
            text = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text(encoding="ascii")
        except OSError:  # unshare has ended
            return []
        return [int(pid) for pid in text.split()]

    def _environment(self) -> list[str]:
        return ["env", "-i", *(f"{name}={text}" for name, text in self._image.environment.items())]


def status(pid: int) -> dict[str, str]:
    """What Linux says of a process, by /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def _uid(pid: int) -> str:
    return status(pid)["Uid"].split()[0]
