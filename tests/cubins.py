"""Real cubins for tests, made by the assembler that comes with Triton, and what NVIDIA's own tool reads in them."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path


def _tools() -> Path:
    triton = find_spec("triton")
    assert triton
    assert triton.origin
    return Path(triton.origin).parent / "backends/nvidia/bin"


def compile_trivial(folder: Path, *architectures: int) -> Path:
    """tests/trivial_kernels.py for these architectures, in `folder`. Another process, because Triton is interpreted
    in this one."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TRITON_", "PYTHONWARN"))}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "TRITON_DISABLE_LINE_INFO": "1"}
    script = Path(__file__).with_name("trivial_kernels.py")
    subprocess.run([sys.executable, str(script), str(folder), *map(str, architectures)], env=environment, check=True)
    return folder


def empty_ptx(name: str, types: list[str], block: int = 128, target: str = "sm_89", version: str = "8.8") -> str:
    """A kernel that does nothing, as Triton would write it: `types` are the Triton types of its arguments."""
    sizes = ["u64 .ptr .global .align 1" if kind.startswith("*") else "u32" for kind in [*types, "*", "*"]]
    params = ",\n".join(f"\t.param .{size} {name}_param_{index}" for index, size in enumerate(sizes))
    head = f".version {version}\n.target {target}\n.address_size 64\n\n.visible .entry {name}(\n{params}\n)\n"
    return f"{head}.reqntid {block}\n{{\n\tret;\n}}\n"


def assemble(ptx: str, folder: Path, assembler: str = "ptxas") -> bytes:
    """The cubin for the architecture that `ptx` names."""
    target = re.search(r"\.target (\w+)", ptx)
    assert target
    (folder / "source.ptx").write_text(ptx, encoding="ascii")
    command = [_tools() / assembler, "-arch", target[1], folder / "source.ptx", "-o", folder / "out.cubin"]
    subprocess.run(command, check=True, capture_output=True)
    return (folder / "out.cubin").read_bytes()


def cuobjdump(cubin: Path, option: str) -> str:
    # It warns of section names of older assemblers.
    return subprocess.run(
        [_tools() / "cuobjdump", option, cubin],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="ascii",
    ).stdout
