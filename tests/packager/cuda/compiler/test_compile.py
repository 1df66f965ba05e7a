"""The compiler: the same bytes everywhere, what a cubin says about itself, and what must not ship is refused."""

import errno
import hashlib
import multiprocessing
import os
import re
import struct
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from qpack_packager.cuda.compiler import compile as compiling
from qpack_packager.cuda.compiler import toolchain
from qpack_packager.cuda.compiler.cache import KernelCache
from qpack_packager.cuda.compiler.compile import compile_all
from qpack_packager.cuda.compiler.compiled import CompiledKernel
from qpack_packager.cuda.compiler.toolchain import compilers
from qpack_packager.cuda.compiler.worker import compile_kernel, prepare
from qpack_packager.cuda.spec import Constant, KernelSpec
from qpack_packager.cuda.targets import ARCHITECTURES, Target
from qpack_packager.progress import Progress
from qpack_schemas.errors import UnsupportedError, UsageError

SAMPLES = "sample_kernels"
AMPERE = Target(86)


def spec(
    function: str, types: Mapping[str, str], constants: Mapping[str, Constant], warps: int = 1, **more
) -> KernelSpec:
    return KernelSpec(f"samples.{function}", tuple(types.items()), tuple(constants.items()), warps, **more)


ADD_TYPES = {"x": "*fp32", "y": "*bf16", "z": "*fp32", "R": "i32"}
ADD = spec("add", ADD_TYPES, {"bias": None, "BLOCK": 128})
BIASED = spec("add", {**ADD_TYPES, "bias": "*fp32"}, {"BLOCK": 128})
EXACT = spec("add", ADD_TYPES, {"bias": None, "BLOCK": 128}, fp_fusion=False)
PRODUCT = spec("product", {"x": "*bf16", "w": "*bf16", "y": "*fp32"}, {"K": 512, "TILE": 64}, 4, stages=3)
HOARDING = spec("hoarding", {"x": "*fp32", "y": "*fp32", "R": "i32"}, {"BLOCK": 4096})
UNDEFINED = spec("undefined", {"x": "*fp32", "y": "*fp32"}, {"BLOCK": 128})
ALL = [ADD, BIASED, EXACT, PRODUCT]

Compiled = Mapping[Target, Mapping[str, CompiledKernel]]


def compiled(spec: KernelSpec, cache: Path, package: str = SAMPLES) -> CompiledKernel:
    return compile_all({AMPERE: [spec]}, Progress("json"), cache=cache, package=package)[AMPERE][spec.name]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def made(cache: Path) -> Compiled:
    """The samples for many targets; tensor cores for one of each kind."""
    wanted = {Target(sm): [ADD] for sm in ARCHITECTURES}
    wanted |= {Target(sm): ALL for sm in (86, 90, 120)} | {Target(sm, "ptx"): ALL for sm in (86, 120)}
    return compile_all(wanted, Progress("json"), cache=cache, package=SAMPLES)


def attribute(cubin: bytes, number: int) -> int:
    """The last word of the record {format 4, attribute, length, ...} in the sections .nv.info."""
    names = struct.unpack_from("<H", cubin, 0x3E)[0]
    offset, count = struct.unpack_from("<Q", cubin, 0x28)[0], struct.unpack_from("<H", cubin, 0x3C)[0]
    headers = [struct.unpack_from("<IIQQQQ", cubin, offset + 64 * index) for index in range(count)]
    for name, _, _, _, start, size in headers:
        if cubin[headers[names][4] + name :].startswith(b".nv.info"):
            found = re.search(
                rb"\x04" + bytes([number]) + rb"(?:\x04\x00|\x08\x00....)(....)", cubin[start : start + size], re.S
            )
            if found:
                return int.from_bytes(found[1], "little")
    raise AssertionError(f"no attribute {number:#x}")


def shown(tool: str, option: str, image: bytes, folder: Path) -> str:
    (folder / "image.cubin").write_bytes(image)
    command = [toolchain.tool(tool), option, folder / "image.cubin"]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout


def test_targets_and_names_are_ascending_whatever_the_order_and_duplicates_are_compiled_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    wanted = {Target(120): [BIASED, ADD, BIASED, replace(ADD)], AMPERE: [ADD, ADD]}
    built = compile_all(wanted, Progress("json"), cache=tmp_path, package=SAMPLES)
    assert list(built) == [AMPERE, Target(120)]
    assert list(built[Target(120)]) == sorted([ADD.name, BIASED.name])
    events = capsys.readouterr().err.splitlines()
    assert '"total": 3' in events[0]
    assert len(events) == 4
    assert len(list(tmp_path.iterdir())) == 3


def test_the_bytes_depend_on_no_process_directory_hash_seed_or_variable(cache: Path, made: Compiled, tmp_path: Path):
    code = """
import hashlib, sys
from pathlib import Path
from qpack_packager.cuda.compiler.compile import compile_all
from qpack_packager.progress import Progress
from packager.cuda.compiler import test_compile as t
if __name__ == "__main__":
    wanted = {t.AMPERE: t.ALL, t.Target(120): t.ALL, t.Target(120, "ptx"): t.ALL}
    for target, kernels in compile_all(wanted, Progress("json"), cache=Path("kept"), package=t.SAMPLES).items():
        for name, kernel in kernels.items():
            print(target.name, name, hashlib.sha256(kernel.image).hexdigest())
"""
    (tmp_path / "script.py").write_text(code, encoding="utf-8")
    tests = Path(__file__).parents[3]
    room = Path(compiling.__file__).parents[3]
    hostile = {
        "PYTHONHASHSEED": "4711",
        "PYTHONPATH": os.pathsep.join(map(str, (tests, room, room.parent / "schemas"))),
        "TRITON_INTERPRET": "1",
        "TRITON_DISABLE_LINE_INFO": "0",
        "TRITON_DEFAULT_FP_FUSION": "0",
        "TRITON_PTXAS_PATH": "nowhere",
        "PTXAS_OPTIONS": "--opt-level 0",
        "DISABLE_LLVM_OPT": "1",
    }
    command = [sys.executable, "script.py"]
    ran = subprocess.run(
        command, cwd=tmp_path, env=os.environ | hostile, capture_output=True, encoding="utf-8", check=False
    )
    assert ran.returncode == 0, ran.stderr
    expected = [
        f"{target.name} {name} {hashlib.sha256(made[target][name].image).hexdigest()}"
        for target in (AMPERE, Target(120), Target(120, "ptx"))
        for name in sorted(spec.name for spec in ALL)
    ]
    assert ran.stdout.splitlines() == expected


@pytest.mark.parametrize("sm", ARCHITECTURES)
def test_every_architecture_compiles_with_the_toolkit_that_the_table_says(sm: int, made: Compiled, tmp_path: Path):
    target, cubin = Target(sm), made[Target(sm)][ADD.name].image
    assert attribute(cubin, 0x37) == target.toolkit
    listing = shown("nvdisasm", "--print-code", cubin, tmp_path)
    assert re.search(rf"EF_CUDA_SM{sm}\b|\.target\s+{target.architecture_name}\b", listing)
    assert compilers(target) == {"triton": "3.9.0", "ptxas": {129: "12.9.86", 134: "13.4.59"}[target.toolkit]}


def test_the_entry_point_is_the_specs_name(made: Compiled, tmp_path: Path):
    for target, kernels in made.items():
        for name, kernel in kernels.items():
            if target.format == "ptx":
                assert re.findall(r"\.visible \.entry (\w+)\(", kernel.image.decode("ascii")) == [name]
            else:
                assert re.findall(r"Function (\w+):", shown("cuobjdump", "-res-usage", kernel.image, tmp_path)) == [
                    name
                ]


def test_registers_are_the_cubins_own_and_shared_memory_is_what_the_tiles_take(made: Compiled):
    for target, kernels in made.items():
        for kernel in kernels.values():
            if target.format == "cubin":
                assert kernel.registers == attribute(kernel.image, 0x2F)
                assert kernel.spills == 0
            else:
                assert (kernel.registers, kernel.spills) == (None, None)
    # Of three stages two wait in shared memory: x [64, 64] and w [64, 16] in bfloat16.
    assert made[AMPERE][PRODUCT.name].shared_bytes == 2 * (64 * 64 + 64 * 16) * 2
    assert made[AMPERE][ADD.name].shared_bytes == 0


def test_no_image_holds_a_path(made: Compiled):
    for kernels in made.values():
        for kernel in kernels.values():
            assert not re.search(rb"/(?:tmp|usr|home|root|work)/|\.py\b|\.ptx\b", kernel.image)


def test_fusion_is_the_specs_choice(made: Compiled, tmp_path: Path):
    for sm in (86, 90, 120):
        for one, fused in ((ADD, True), (EXACT, False)):
            listing = shown("nvdisasm", "--print-code", made[Target(sm)][one.name].image, tmp_path)
            assert ("FFMA" in listing) == fused, (sm, one)
    # Without a rounding, the driver that assembles the PTX would fuse what the build did not.
    text = made[Target(120, "ptx")][EXACT.name].image.decode("ascii")
    assert not re.findall(r"\b(?:mul|add|sub|fma)(?!\.rn)(?:\.\w+)*\.f32\b", text)


@pytest.mark.parametrize(("sm", "newer"), [(86, "sm_89"), (86, "sm_90"), (86, "sm_121"), (120, "sm_121")])
def test_ptx_is_for_newer_gpus_and_old_drivers(sm: int, newer: str, made: Compiled, tmp_path: Path):
    for kernel in made[Target(sm, "ptx")].values():
        text = kernel.image.decode("ascii")
        assert re.findall(r"^\.target (.*)$", text, re.MULTILINE) == [f"sm_{sm}"]
        major, minor = divmod(ARCHITECTURES[sm].ptx, 10)
        assert re.findall(r"^\.version (.*)$", text, re.MULTILINE) == [f"{major}.{minor}"]
        (tmp_path / "kernel.ptx").write_bytes(kernel.image)
        command = [toolchain.tool("ptxas"), f"--gpu-name={newer}", "kernel.ptx"]
        subprocess.run(command, cwd=tmp_path, check=True)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory):
    """worker(spec, target): compiles in one process for all tests."""
    scratch = tmp_path_factory.mktemp("scratch")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare) as pool:
        yield lambda spec, target=AMPERE: pool.submit(compile_kernel, spec, target, SAMPLES, scratch).result()
    assert not list(scratch.iterdir())


def test_a_host_without_shared_memory_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def absent(*_: object, ctx: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))  # as a container without /dev/shm has it, naming no file

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", absent)
    with pytest.raises(UnsupportedError, match=r"(?s)^/dev/shm: .*Read-only file system.*remedy: .*tmpfs"):
        compile_all({AMPERE: [ADD]}, Progress("json"), cache=tmp_path, package=SAMPLES)


def test_ptx_that_only_one_architecture_understands_is_refused(worker):
    with pytest.raises(UnsupportedError, match=r"runs on sm_90 only:\n.*wgmma") as caught:
        worker(PRODUCT, Target(90, "ptx"))
    assert f"kernel {PRODUCT.name} (samples.product) for cuda:ptx_90" in str(caught.value)


@pytest.mark.parametrize("target", [AMPERE, Target(120, "ptx")])
def test_a_kernel_that_spills_is_refused_with_the_bytes(target: Target, worker):
    with pytest.raises(UnsupportedError, match=r"spills \d+ bytes of registers per thread") as caught:
        worker(HOARDING, target)
    assert f"kernel {HOARDING.name} (samples.hoarding) for {target.name}" in str(caught.value)
    assert caught.value.exit_code == 4


def test_more_shared_memory_than_the_architecture_has_is_refused(worker):
    greedy = replace(PRODUCT, constants=(("K", 1024), ("TILE", 128)), stages=7)
    needed = 6 * (128 * 64 + 64 * 16) * 2
    assert ARCHITECTURES[89].max_shared_bytes < needed <= ARCHITECTURES[80].max_shared_bytes
    assert worker(greedy, Target(80)).shared_bytes == needed
    with pytest.raises(UnsupportedError, match=f"needs {needed} bytes .*, the architecture has 101376"):
        worker(greedy, Target(89))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("undefined", r"does not compile:\n  at 2:15:\n  def wrong\(x\):\n.*nowhere.*\n.*\^\n  NameError"),
        ("unassembled", r"ptxas \S+\.ptx, line \d+; error   : Not a name of any known instruction: 'nonsense'"),
        ("absent", "has no attribute 'absent'"),
    ],
)
def test_what_does_not_compile_is_refused_with_the_compilers_words(function: str, said: str, worker, capfd):
    with pytest.raises(UnsupportedError, match=said) as caught:
        worker(replace(UNDEFINED, function=f"samples.{function}"))
    assert f"(samples.{function}) for cuda:sm_86" in str(caught.value)
    assert "/" not in caught.value.message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(ADD, types=tuple(reversed(ADD.types))), "takes"),
        (replace(ADD, types=ADD.types[:-1]), "takes"),
        (replace(ADD, constants=(*ADD.constants, ("WIDTH", 1))), "takes"),
        (replace(ADD, types=(*ADD.types, ("BLOCK", "i32")), constants=(("bias", None),)), "needs .'BLOCK'. at compile"),
        (replace(UNDEFINED, function="samples.untouched"), "is no Triton function"),
    ],
)
def test_a_spec_that_is_not_made_for_its_function_is_a_fault_of_qpack(wrong: KernelSpec, said: str, worker):
    with pytest.raises(AssertionError, match=said):
        worker(wrong)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_kernels").mkdir()
    (tmp_path / "own_kernels" / "__init__.py").touch()

    def write(text: str) -> str:
        (tmp_path / "own_kernels" / "samples.py").write_text(text, encoding="utf-8")
        return "own_kernels"

    return write


def test_a_module_that_is_no_python_is_refused_with_the_line(package, cache: Path):
    with pytest.raises(UnsupportedError, match=r"does not compile:\n.*samples\.py, line 2"):
        compiled(ADD, cache, package("import triton\ndef add(x:\n"))


def test_a_compiler_that_dies_is_reported_with_what_it_was_at(package, cache: Path):
    text = "import os\nprint('LLVM ERROR: out of luck', flush=True)\nos.abort()\n"
    with pytest.raises(UnsupportedError, match=r"(?s)the compiler died.*\(samples.add\) for cuda:sm_86.*out of luck"):
        compiled(ADD, cache, package(text))


def test_the_first_of_several_errors_is_raised_whatever_finishes_first(cache: Path):
    targets = {Target(89): [UNDEFINED], AMPERE: [HOARDING]}
    with pytest.raises(UnsupportedError, match="for cuda:sm_86: spills"):
        compile_all(targets, Progress("json"), cache=cache, processes=2, package=SAMPLES)


def test_what_is_kept_needs_no_compiler_and_what_is_damaged_is_compiled_again(
    made: Compiled, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wanted = dict.fromkeys((AMPERE, Target(120, "ptx")), ALL)
    kernels = compile_all(wanted, Progress("json"), cache=tmp_path, package=SAMPLES)
    assert kernels == {target: made[target] for target in wanted}
    entry = min(tmp_path.iterdir())
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert compile_all(wanted, Progress("json"), cache=tmp_path, package=SAMPLES) == kernels
    assert entry.read_bytes() == whole

    def forbidden(*_):
        raise AssertionError("a compiler is started")

    monkeypatch.setattr(compiling, "ProcessPoolExecutor", forbidden)
    assert compile_all(wanted, Progress("json"), cache=tmp_path, package=SAMPLES) == kernels
    entry.unlink()
    with pytest.raises(AssertionError, match="a compiler is started"):
        compile_all(wanted, Progress("json"), cache=tmp_path, package=SAMPLES)


def test_compiling_imports_triton_in_no_process_but_its_own():
    code = "import sys, qpack_packager.cuda.compiler.compile; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_cache_that_cannot_be_written_is_noted_once_and_no_error(
    made: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(*_):
        raise OSError(28, "No space left on device", "kernels")

    monkeypatch.setattr(KernelCache, "put", full)
    built = compile_all({AMPERE: [ADD, BIASED]}, Progress("plain"), cache=tmp_path, package=SAMPLES)
    assert built[AMPERE] == {name: made[AMPERE][name] for name in sorted([ADD.name, BIASED.name])}
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert notes == ["note: compiled kernels are not kept for the next build: No space left on device: kernels"]


def test_without_triton_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None if name == "triton" else find_spec(name))
    toolchain.tool.cache_clear()
    with pytest.raises(UsageError, match=r"pip install 'qpack-llm\[kernels\]'"):
        compiled(ADD, tmp_path)


def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    compiled(ADD, tmp_path / "cache")
    with pytest.raises(UnsupportedError):
        compiled(UNDEFINED, tmp_path / "cache")
    assert not list((tmp_path / "tmp").iterdir())
