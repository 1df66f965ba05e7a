"""Compiles one kernel for one target in a process of its own: Triton reads its settings from the environment when it is
imported, and a fault in the compiler ends the process."""

import importlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qpack_packager.cuda.compiler.compiled import CompiledKernel
from qpack_packager.cuda.compiler.toolchain import assembler, resources
from qpack_packager.cuda.spec import KernelSpec
from qpack_packager.cuda.targets import Target
from qpack_schemas.errors import UnsupportedError

LOG = "log"  # in the folder of a job: what the compiler says on stdout and stderr
LINES = 12  # of a compiler's message that are worth showing

_ALIGNED = [["tt.divisibility", 16]]  # bytes


def job_name(spec: KernelSpec, target: Target) -> str:
    return f"{spec.name}.{target.folder}"


def prepare() -> None:
    """Makes a fresh process a compiler whose result depends on nothing but its input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends the work
    warnings.filterwarnings("ignore", category=EncodingWarning)  # Triton opens files and names no encoding
    os.environ.clear()  # dozens of variables change what Triton, LLVM and ptxas do
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # else the cubin holds paths of this machine
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # each spec decides; the default is another in the next Triton


def compile_kernel(spec: KernelSpec, target: Target, package: str, scratch: Path) -> CompiledKernel:
    """Compiles spec.function of `package`. Works in a folder of `scratch` that is named after the job and removed at
    the end: one that is left tells which job the compiler died of.

    UnsupportedError: the kernel does not compile, spills, or needs too much shared memory."""
    folder = scratch / job_name(spec, target)
    folder.mkdir()
    try:
        with tempfile.TemporaryDirectory(dir=scratch) as work, _logged(folder / LOG):
            os.environ["TRITON_CACHE_DIR"] = tempfile.tempdir = work
            os.environ["TRITON_PTXAS_PATH"] = os.environ["TRITON_PTXAS_BLACKWELL_PATH"] = str(assembler(target))
            with _compiler_errors(spec, target, folder / LOG):
                function = _load(spec, package)
            _match(function, spec)
            with _compiler_errors(spec, target, folder / LOG):
                made = _compile(function, spec, target)
            return _checked(made, spec, target, Path(work))
    finally:
        shutil.rmtree(folder)


def _load(spec: KernelSpec, package: str) -> Any:
    module, _, name = spec.function.rpartition(".")
    return getattr(importlib.import_module(f"{package}.{module}"), name)


def _match(function: Any, spec: KernelSpec) -> None:
    """AssertionError: the spec is not made for the function."""
    from triton.runtime.jit import JITFunction

    if not isinstance(function, JITFunction):
        raise AssertionError(f"{spec.function} is no Triton function to compile, but a {type(function).__name__}")
    constants, types = dict(spec.constants), dict(spec.types)
    expected = [argument for argument in function.arg_names if argument not in constants]
    if list(types) != expected or not constants.keys() <= set(function.arg_names):
        raise AssertionError(f"{spec.function} takes {function.arg_names}, the spec has {list(types)} and {constants}")
    if static := [argument.name for argument in function.params if argument.is_constexpr and argument.name in types]:
        raise AssertionError(f"{spec.function} needs {static} at compile time, the spec gives them at run time")


def _compile(function: Any, spec: KernelSpec, target: Target) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function._repr = lambda _: spec.name  # the entry point's name
    types = dict(spec.types)
    index = {name: (place,) for place, name in enumerate(function.arg_names)}
    source = ASTSource(
        function,
        {name: types.get(name, "constexpr") for name in function.arg_names},
        constexprs={index[name]: value for name, value in spec.constants},
        attrs={index[name]: _ALIGNED for name, kind in spec.types if kind.startswith("*")},
    )
    options = {
        "num_warps": spec.warps,
        "num_stages": spec.stages,
        "enable_fp_fusion": spec.fp_fusion,
        "ptx_version": target.architecture.ptx,
    }
    return triton.compile(source, target=GPUTarget("cuda", target.sm, 32), options=options)


def _checked(made: Any, spec: KernelSpec, target: Target, work: Path) -> CompiledKernel:
    facts, cubin = made.metadata, work / "kernel.cubin"
    expected = (spec.name, spec.warps, 0, 0)
    found = (facts.name, facts.num_warps, facts.global_scratch_size, facts.profile_scratch_size)
    if found != expected:
        raise AssertionError(f"{spec.function}: name, warps and scratch are {found}, not {expected}")
    if target.format == "ptx":
        image = _portable(made.asm["ptx"], spec, target, cubin)
    else:
        image = made.asm["cubin"]
        cubin.write_bytes(image)
    registers, spills = resources(cubin)
    if spills:
        message = f"spills {spills} bytes of registers per thread to memory"
        raise _refusal(spec, target, message, "give the kernel more warps or smaller blocks")
    if facts.shared > (most := target.architecture.max_shared_bytes):
        message = f"needs {facts.shared} bytes of shared memory per block, the architecture has {most}"
        raise _refusal(spec, target, message, "give the kernel fewer stages or smaller blocks")
    if target.format == "ptx":
        return CompiledKernel(image, facts.shared, None, None)
    return CompiledKernel(image, facts.shared, registers, spills)


def _portable(ptx: str, spec: KernelSpec, target: Target, cubin: Path) -> bytes:
    """`ptx` for every GPU from the target's architecture up: Triton writes `.target sm_120a`, which is for no other.
    Leaves in `cubin` what the assembler makes of it."""
    text = re.sub(rf"^(\.target sm_{target.sm})a$", r"\1", ptx, flags=re.MULTILINE)
    source = cubin.with_suffix(".ptx")
    source.write_text(text, encoding="ascii")
    fusion = [] if spec.fp_fusion else ["--fmad=false"]
    command = [assembler(target), *fusion, f"--gpu-name=sm_{target.sm}", source, "-o", cubin]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if ran.returncode:
        reason = _shortened(ran.stderr.splitlines())
        raise _refusal(spec, target, f"has PTX that runs on sm_{target.sm} only:\n{reason}")
    return text.encode("ascii")


def _refusal(spec: KernelSpec, target: Target, message: str, remedy: str = "") -> UnsupportedError:
    return UnsupportedError(message, where=f"kernel {spec.name} ({spec.function}) for {target.name}", remedy=remedy)


@contextmanager
def _compiler_errors(spec: KernelSpec, target: Target, log: Path) -> Iterator[None]:
    """Whatever Python, Triton, LLVM or ptxas have against a kernel becomes one error for people."""
    try:
        yield
    except OSError:  # a full disk says nothing about the kernel
        raise
    except Exception as error:
        logged = log.read_text(encoding="utf-8", errors="replace")
        raise _refusal(spec, target, f"does not compile:\n{_reason(error, logged)}") from None


def _reason(error: BaseException, logged: str) -> str:
    """The innermost of Triton's chained errors, which points at the line in question, and what was logged with it."""
    while (inner := error.__cause__) and type(inner) is type(error):
        error = inner
    said = str(error).partition("Repro command")[0].strip() or type(error).__name__
    return _shortened(
        [*said.splitlines(), *(line for line in logged.splitlines() if "error:" in line and line not in said)]
    )


def _shortened(lines: list[str]) -> str:
    shown = [re.sub(r"/\S*/(\S+\.ptx)", r"\1", f"  {line}".rstrip()) for line in lines if line.strip()]
    return "\n".join(shown[:LINES] + (["  ..."] if len(shown) > LINES else []))


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Stdout and stderr of this process, and of the programs that it starts, go to `path`."""
    kept = os.dup(1), os.dup(2)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        for place, saved in enumerate(kept, 1):
            os.dup2(saved, place)
            os.close(saved)
