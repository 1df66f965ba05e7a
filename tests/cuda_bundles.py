"""Bundles with CUDA targets, quickly: their kernels have the arguments of the real ones and do nothing.

What a kernel computes is interpreted from its source, so that compiling it for minutes would prove nothing more here.
The stand-ins are made by the real assembler: what opens a bundle and loads it sees true cubins."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from bundles import build_bundle
from cubins import assemble, empty_ptx
from qpack_packager.cuda.compiler.compiled import CompiledKernel
from qpack_packager.cuda.compiler.toolchain import assembler
from qpack_packager.cuda.spec import KernelSpec
from qpack_packager.cuda.targets import Target
from qpack_packager.serving import Options
from qpack_schemas.cubin import read_cubin

LARGE_SHARED = 50 << 10  # bytes: more than a kernel gets without asking
NEEDS_MUCH = "attention_prefill"


def build_cuda_bundle(model: Path, output: Path, options: Options) -> Path:
    with patch("qpack_packager.cuda.package.compile_all", _stand_ins):
        return build_bundle(model, output, options)


def _stand_ins(
    wanted: Mapping[Target, Iterable[KernelSpec]], *_: Any, **__: Any
) -> dict[Target, dict[str, CompiledKernel]]:
    specs = {target: {spec.name: spec for spec in all_of} for target, all_of in wanted.items()}
    with TemporaryDirectory() as name:
        work = Path(name)
        return {
            target: {name: stand_in(named[name], target, work) for name in sorted(named)}
            for target, named in sorted(specs.items())
        }


def stand_in(spec: KernelSpec, target: Target, work: Path) -> CompiledKernel:
    """A kernel of this name, with these arguments and in these blocks, that returns at once. `work` is a folder."""
    architecture = f"sm_{target.sm}" if target.format == "ptx" else target.architecture_name
    version = f"{target.architecture.ptx // 10}.{target.architecture.ptx % 10}"
    ptx = empty_ptx(spec.name, [kind for _, kind in spec.types], 32 * spec.warps, architecture, version)
    shared = LARGE_SHARED if spec.function.endswith(NEEDS_MUCH) else 0
    if target.format == "ptx":
        return CompiledKernel(ptx.encode("ascii"), shared, None, None)
    image = assemble(ptx, work, assembler(target).name)
    return CompiledKernel(image, shared, read_cubin(image, spec.name).entries[spec.name].registers, 0)
