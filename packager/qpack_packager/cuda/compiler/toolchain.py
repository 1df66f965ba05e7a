"""The compiler as it is installed: its tools and their versions. Does not import triton, which takes seconds."""

import re
import subprocess
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from qpack_packager.cuda.targets import Target
from qpack_schemas.errors import UsageError


@cache
def tool(name: str) -> Path:
    """A program that comes with Triton: ptxas, ptxas-blackwell, cuobjdump or nvdisasm.

    UsageError: Triton is not installed."""
    found = find_spec("triton")
    if found is None or found.origin is None:
        raise UsageError("kernels need triton, which is not installed", remedy="pip install 'qpack-llm[kernels]'")
    return Path(found.origin).parent / "backends" / "nvidia" / "bin" / name


def assembler(target: Target) -> Path:
    return tool({129: "ptxas", 134: "ptxas-blackwell"}[target.toolkit])


def compilers(target: Target) -> dict[str, str]:
    """What a manifest records: {"triton": "3.9.0", "ptxas": "12.9.86"}. UsageError: Triton is not installed."""
    release = _release(assembler(target))
    if not release.startswith(f"{target.toolkit // 10}.{target.toolkit % 10}."):
        raise AssertionError(
            f"{target.name} is planned for CUDA {target.toolkit}, but {assembler(target)} is {release}"
        )
    return {"triton": version("triton"), "ptxas": release}


@cache
def _release(ptxas: Path) -> str:
    shown = subprocess.run([ptxas, "--version"], capture_output=True, encoding="utf-8", check=True).stdout
    found = re.search(r"\bV([0-9.]+)", shown)
    if not found:
        raise AssertionError(f"{ptxas} --version tells no version: {shown!r}")
    return found[1]


def resources(cubin: Path) -> tuple[int, int]:
    """Registers, and bytes of local memory per thread, of the one kernel in the file `cubin`.

    Local memory is stack frames, where spilled registers go, and arrays, which Triton does not make."""
    command = [tool("cuobjdump"), "-res-usage", cubin]
    shown = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    found = re.findall(r"\bREG:(\d+) STACK:(\d+) .*\bLOCAL:(\d+)", shown)
    if len(found) != 1:
        raise AssertionError(f"{cubin} holds {len(found)} kernels, not one")
    registers, stack, local = map(int, found[0])
    return registers, stack + local
