"""Which processes another one has started."""

from contextlib import suppress
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """The ids, zombies among them, in rising order.

    By the parent that each process names: the lists under /proc/PID/task go with their threads, and a child that
    changes from one of those to another while they are read is missed.
    """
    children = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            parent = int(stat.rpartition(") ")[2].split()[1])  # proc(5); the name before it may hold anything
            if parent == pid:
                children.append(int(folder.name))
    return sorted(children)
