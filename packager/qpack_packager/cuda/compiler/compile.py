"""Kernel specs x targets -> machine code, ahead of time and without a GPU."""

import multiprocessing
import os
import tempfile
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path

from qpack_packager.cuda.compiler.cache import KernelCache, default_folder, digest_sources, key
from qpack_packager.cuda.compiler.compiled import CompiledKernel
from qpack_packager.cuda.compiler.toolchain import compilers
from qpack_packager.cuda.compiler.worker import LOG, compile_kernel, job_name, prepare
from qpack_packager.cuda.spec import KernelSpec
from qpack_packager.cuda.targets import Target
from qpack_packager.progress import Progress
from qpack_schemas.errors import UnsupportedError

KERNELS = "qpack_packager.cuda.kernels"

Job = tuple[Target, str]  # the name of a spec


def compile_all(
    wanted: Mapping[Target, Iterable[KernelSpec]],
    progress: Progress,
    *,
    cache: Path | None = None,
    processes: int | None = None,
    package: str = KERNELS,
) -> dict[Target, dict[str, CompiledKernel]]:
    """Target -> kernel's name -> what was made of it, both ascending; a spec that is wanted twice is compiled once.

    `cache` is the folder that keeps compiled kernels between builds (default: in the user's cache), `processes` how
    many compile at once (default: one a core). Of several errors the one first in that order is raised:
    UnsupportedError for a kernel that does not compile, spills registers, or needs more shared memory than the
    architecture has; AssertionError for a spec that is not made for its function. UsageError without Triton."""
    specs = {(target, spec.name): spec for target in sorted(wanted) for spec in sorted(wanted[target], key=_name)}
    kept, sources = KernelCache(cache or default_folder()), digest_sources(package)
    keys = {job: key(spec, job[0], compilers(job[0]), sources) for job, spec in specs.items()}
    made: dict[Job, CompiledKernel] = {}
    keeping = True
    with progress.phase("kernels", len(specs)) as step:
        for job in specs:
            if kernel := kept.get(keys[job]):
                made[job] = kernel
                step(_label(job))
        missing = {job: spec for job, spec in specs.items() if job not in made}
        with closing(_compiled(missing, processes or len(os.sched_getaffinity(0)), package)) as compiled:
            for job, kernel in compiled:
                keeping = keeping and _keep(kernel, keys[job], kept, progress)
                made[job] = kernel
                step(_label(job))
    return {target: {name: made[target, name] for other, name in specs if other == target} for target in sorted(wanted)}


def _keep(kernel: CompiledKernel, digest: str, cache: KernelCache, progress: Progress) -> bool:
    """Returns whether it could: the build is none the worse if not, only the next one."""
    try:
        cache.put(digest, kernel)
    except OSError as error:
        progress.note(f"compiled kernels are not kept for the next build: {error.strerror}: {error.filename}")
        return False
    return True


def _compiled(specs: Mapping[Job, KernelSpec], processes: int, package: str) -> Generator[tuple[Job, CompiledKernel]]:
    """Compiles in the order of `specs`, several at once."""
    if not specs:
        return
    with tempfile.TemporaryDirectory(prefix="qpack-") as folder:
        scratch = Path(folder)
        context = multiprocessing.get_context("spawn")  # a fork would inherit a triton that is set up otherwise
        try:
            pool = ProcessPoolExecutor(min(processes, len(specs)), context, prepare)
        except OSError as error:
            raise UnsupportedError(
                f"the compilers' processes can't share a semaphore: {error.strerror or error}", where="/dev/shm",
                remedy="let it be a writable tmpfs in this container",
            ) from None  # fmt: skip
        try:
            futures = {job: pool.submit(compile_kernel, spec, job[0], package, scratch) for job, spec in specs.items()}
            for job, future in futures.items():
                yield job, future.result()
        except BrokenProcessPool:
            raise _crash(specs, scratch) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _crash(specs: Mapping[Job, KernelSpec], scratch: Path) -> UnsupportedError:
    """A worker died; it may be any of those that were at work."""
    names = {
        job_name(spec, target): f"{spec.name} ({spec.function}) for {target.name}"
        for (target, _), spec in specs.items()
    }
    running = sorted(folder.name for folder in scratch.iterdir() if folder.name in names)
    said = [line for name in running for line in (scratch / name / LOG).read_text("utf-8", "replace").splitlines()]
    lines = ["the compiler died, perhaps for want of memory, on one of:", *(f"  {names[name]}" for name in running)]
    return UnsupportedError("\n".join([*lines, *(f"  {line}" for line in said[-4:])]))


def _name(spec: KernelSpec) -> str:
    return spec.name


def _label(job: Job) -> str:
    return f"{job[0].folder}/{job[1]}"
