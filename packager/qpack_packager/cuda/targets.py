"""Which GPU architectures kernels can be compiled for, and what `--target cuda:sm_89` means."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from qpack_schemas.errors import UnsupportedError

KB = 1024


@dataclass(frozen=True)
class Architecture:
    """sm: compute capability, 89 for 8.9. max_shared_bytes: the most shared memory a block may ask for ("Technical
    Specifications per Compute Capability", CUDA programming guide). min_driver: the oldest driver that loads the
    cubin or assembles the PTX, as cuDriverGetVersion reports it. ptx: the PTX version of CUDA 12.0 or, if it is newer,
    of the first CUDA that knows the architecture, times ten. toolkit: the CUDA whose assembler is used, times ten."""

    sm: int
    max_shared_bytes: int
    min_driver: int
    ptx: int
    toolkit: Literal[129, 134] = 129

    @property
    def scope(self) -> Literal["exact", "major"]:
        """From 9.0 up Triton compiles for `sm_90a` and the like, which run on that compute capability and no other;
        below, a cubin runs on its own and on higher minor versions of the same major."""
        return "exact" if self.sm >= 90 else "major"

    @property
    def portable(self) -> bool:
        """Whether PTX for it runs on every newer GPU: matrix products of these compile to `mma.sync`, those of 9.0 to
        11.0 to `wgmma` or `tcgen05`, which no other architecture has."""
        return self.sm < 90 or self.sm >= 120

    @property
    def tensor_cores(self) -> bool:
        """Whether Triton multiplies on them. For 7.5 it makes multiply-adds: seven times as many instructions."""
        return self.sm >= 80


# Triton brings two assemblers. That of CUDA 12.9 is taken wherever it can be, since its cubins load with any driver of
# CUDA 12 that knows the GPU; 11.0 came with CUDA 13.
ARCHITECTURES = {
    architecture.sm: architecture
    for architecture in (
        Architecture(75, 64 * KB, 12000, 80),
        Architecture(80, 163 * KB, 12000, 80),
        Architecture(86, 99 * KB, 12000, 80),
        Architecture(87, 163 * KB, 12000, 80),
        Architecture(89, 99 * KB, 12000, 80),
        Architecture(90, 227 * KB, 12000, 80),
        Architecture(100, 227 * KB, 12080, 86),
        Architecture(103, 227 * KB, 12090, 88),
        Architecture(110, 227 * KB, 13000, 90, 134),
        Architecture(120, 99 * KB, 12080, 87),
        Architecture(121, 99 * KB, 12090, 88),
    )
}
COMMON = (80, 86, 87, 89, 90, 120)  # A100; RTX 30; Orin; RTX 40 and L4; H100; RTX 50


@dataclass(frozen=True, order=True)
class Target:
    """What a bundle holds kernels for: machine code of one architecture, or PTX that a driver assembles for newer
    ones."""

    sm: int
    format: Literal["cubin", "ptx"] = "cubin"

    @property
    def folder(self) -> str:
        return f"{'sm' if self.format == 'cubin' else 'ptx'}_{self.sm}"

    @property
    def name(self) -> str:
        return f"cuda:{self.folder}"

    @property
    def architecture(self) -> Architecture:
        return ARCHITECTURES[self.sm]

    @property
    def architecture_name(self) -> str:
        """What the code says that it is for: sm_89, sm_90a."""
        return f"sm_{self.sm}{'a' if self.scope == 'exact' else ''}"

    @property
    def scope(self) -> Literal["exact", "major", "newer"]:
        return "newer" if self.format == "ptx" else self.architecture.scope

    @property
    def toolkit(self) -> int:
        return self.architecture.toolkit

    @property
    def min_driver(self) -> int:
        return self.architecture.min_driver


def parse_targets(names: Iterable[str]) -> tuple[Target, ...]:
    """`cuda:sm_89` or `cuda`, which stands for the common ones -> targets, ascending, each once.

    UnsupportedError: no architecture that kernels can be compiled for."""
    return tuple(sorted({Target(sm) for name in names for sm in _architectures(name)}))


def forward_path(targets: Iterable[Target]) -> Target:
    """The PTX target for GPUs newer than all `targets`: of the newest architecture among them, or of the newest
    portable one below it."""
    newest = max(target.sm for target in targets)
    return Target(max(sm for sm, known in ARCHITECTURES.items() if sm <= newest and known.portable), "ptx")


def _architectures(name: str) -> tuple[int, ...]:
    if name == "cuda":
        return COMMON
    parsed = re.fullmatch(r"cuda:sm_([0-9]+)", name)
    if parsed and int(parsed[1]) in ARCHITECTURES:
        return (int(parsed[1]),)
    known = ", ".join(f"cuda:sm_{sm}" for sm in ARCHITECTURES)
    floor = min(ARCHITECTURES)
    old = f"; Triton compiles for sm_{floor} and newer" if parsed and int(parsed[1]) < floor else ""
    raise UnsupportedError(f"--target {name} is not supported{old}", remedy=f"use one of cuda, {known}")
