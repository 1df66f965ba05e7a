"""Kernels and launch tables into the bundle, and what the manifest says about them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from qpack_packager.bundle_writer import BundleWriter
from qpack_packager.cuda.compiler.compile import compile_all
from qpack_packager.cuda.compiler.compiled import CompiledKernel
from qpack_packager.cuda.compiler.toolchain import compilers
from qpack_packager.cuda.lowering.lower import LoweredTarget
from qpack_packager.cuda.spec import KernelSpec
from qpack_packager.progress import Progress
from qpack_schemas.launch_table import kernel_folder, table_path
from qpack_schemas.manifest import Bucket, FileEntry, Kernel, Memory, Target
from qpack_schemas.memory import account_target
from qpack_schemas.strict_json import dump_compact

WARP = 32  # threads


def add_kernels(
    lowered: Sequence[LoweredTarget], writer: BundleWriter, progress: Progress, cache: Path | None
) -> dict[str, dict[str, Kernel]]:
    """Compiles what the targets need and writes it with their launch tables. Returns target -> kernel -> its entry."""
    if not lowered:
        return {}
    compiled = compile_all({one.target: one.specs.values() for one in lowered}, progress, cache=cache)
    entries: dict[str, dict[str, Kernel]] = {}
    for one in lowered:
        target, kernels = one.target, entries.setdefault(one.target.name, {})
        for kind, table in one.tables.items():
            writer.add(table_path(target.name, kind), dump_compact(table.to_json()))
        for name, spec in one.specs.items():
            made = compiled[target][name]
            file = f"{kernel_folder(target.name)}/{name}.{target.format}"
            kernels[name] = _entry(spec, made, file, writer.add(file, made.image))
    return entries


def _entry(spec: KernelSpec, made: CompiledKernel, file: str, digest: str) -> Kernel:
    return {
        "file": file,
        "sha256": digest,
        "function": spec.function,
        "block": spec.warps * WARP,
        "shared_bytes": made.shared_bytes,
        "registers": made.registers,
        "spills": made.spills,
        "params": [list(pair) for pair in spec.types],
        "constants": dict(spec.constants),
    }


def describe_targets(
    lowered: Sequence[LoweredTarget],
    kernels: Mapping[str, Mapping[str, Kernel]],
    files: Sequence[FileEntry],
    memory: Memory,
    buckets: Sequence[Bucket],
) -> dict[str, Target]:
    """The manifest's entries of all targets with kernels of their own."""
    described: dict[str, Target] = {}
    for one in lowered:
        target, entries = one.target, kernels[one.target.name]
        work, minimum = account_target(files, memory, one.tables, buckets)
        described[target.name] = {
            "architecture": target.architecture_name,
            "scope": target.scope,
            "format": target.format,
            "toolkit": target.toolkit,
            "min_driver": target.min_driver,
            "max_shared_bytes": max(entry["shared_bytes"] for entry in entries.values()),
            "work_bytes": work,
            "minimum_device_bytes": minimum,
            "compilers": compilers(target),
            "kernels": dict(entries),
        }
    return described


def compilers_of(lowered: Sequence[LoweredTarget]) -> list[tuple[str, str]]:
    """Name and version of all that makes the kernels; an architecture may need an assembler of its own."""
    return sorted({pair for one in lowered for pair in compilers(one.target).items()})
