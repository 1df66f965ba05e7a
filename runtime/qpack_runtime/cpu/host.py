"""What the host's processors are, and how many of them a step should use."""

import os
import re
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_threads() -> int:
    """One thread per physical core that this process may run on, within the container's quota of processor time: a
    step is bound by memory, and a second thread on a core only waits for the same lines."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_siblings(cpu) for cpu in allowed}
    quota = re.match(r"(\d+) (\d+)", _read(_QUOTA))
    share = max(1, int(quota[1]) // int(quota[2])) if quota else len(cores)
    return min(len(cores), share)


def processor() -> str:
    """The model name, as the system tells it."""
    names = re.findall(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return names[0].strip() if names else os.uname().machine


def _siblings(cpu: int) -> str:
    """Threads of the same core share this text."""
    return _read(_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:  # a file of Linux that this host doesn't have
        return ""
