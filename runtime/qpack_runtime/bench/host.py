"""What the host is, without saying whose: no host name, user or path."""

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from qpack_runtime.cpu.host import processor

STATUS = Path("/proc/self/status")


def describe_host(threads: int | None, instructions: str) -> dict[str, Any]:
    """For the report. `threads`: that compute a step; None: a GPU does. `instructions`: by which it is computed."""
    return {
        "cpu": processor(),
        "cores": cores(),
        "threads": threads,
        "instructions": instructions,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "versions": {
            "qpack": version("qpack-llm"),
            "python": platform.python_version(),
            "numpy": version("numpy"),
        },
    }


def cores() -> int:
    """Logical processors that this process may run on."""
    return len(os.sched_getaffinity(0))


def peak_rss_bytes() -> int:
    """The most memory that this process has had resident, mapped files included: VmHWM of proc(5). Not ru_maxrss, which
    a process inherits from the one that started it."""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    assert found, "the kernel tells no VmHWM"
    return int(found[1]) * 1024
