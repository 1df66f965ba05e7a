"""The executors that compute in the host's own memory, each in every form that this host can run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from instruction import kernels
from qpack_runtime.boot import Booted, boot
from qpack_runtime.cpu.executor import CpuExecutor
from qpack_runtime.reference.executor import ReferenceExecutor
from qpack_schemas.bundle import Bundle

HostExecutor = ReferenceExecutor | CpuExecutor


@dataclass(frozen=True)
class Kind:
    """The reference, or the CPU executor in one mode on one code path."""

    mode: Literal["fast", "exact"] | None = None  # None: the reference
    path: str = ""

    def make(self, bundle: Bundle, threads: int = 1) -> HostExecutor:
        if self.mode is None:
            return ReferenceExecutor(bundle)
        return CpuExecutor(bundle, mode=self.mode, threads=threads, code_path=self.path)

    def boot(self, path: Path, threads: int = 1) -> Booted:
        if self.mode is None:
            return boot(path, "reference")
        return boot(path, "cpu", mode=self.mode, threads=threads, code_path=self.path)

    @property
    def threads(self) -> tuple[int, ...]:
        """The numbers of threads to try; three are more than some hosts have cores."""
        return (1,) if self.mode is None else (1, 2, 3)

    def __str__(self) -> str:
        return f"{self.mode} {self.path}" if self.mode else "reference"


REFERENCE = Kind()
FAST = tuple(Kind("fast", path) for path in kernels().paths)
EXACT = tuple(Kind("exact", path) for path in kernels().paths)
CPU_KINDS = FAST + EXACT


def host_executor(booted: Booted) -> HostExecutor:
    """The executor of a boot whose state a test looks into."""
    assert isinstance(booted.executor, HostExecutor)
    return booted.executor


def passing_memory(executor: HostExecutor) -> list[np.ndarray]:
    """What no step may rely on, as uint8 [bytes]: the work arena, and the room within instructions."""
    scratch = [executor._scratch] if isinstance(executor, CpuExecutor) else []
    return [executor.arenas.work, *scratch]
