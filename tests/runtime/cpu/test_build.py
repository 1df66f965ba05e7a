"""scripts/build_cpu.py, hatch_build.py and what a release checks: from the sources of the kernels to a wheel.

The kernels themselves are compiled once here. All else is tried with a project that has toy kernels.
"""

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "scripts"))

import build_cpu  # noqa: E402
import release_wheels  # noqa: E402
import zig_cxx  # noqa: E402

KERNELS = Path("runtime/qpack_runtime/cpu/kernels")
LIBRARY = Path("runtime/qpack_runtime/cpu/libqpack_cpu.so")
IN_WHEEL = "qpack_runtime/cpu/libqpack_cpu.so"

TOY = {
    "path.h": """
        __attribute__((noinline)) inline const char *shared() {
        #if defined(__AVX512F__)
          return "avx512";
        #elif defined(__AVX2__)
          return "avx2";
        #elif defined(__ARM_FEATURE_DOTPROD)
          return "neon";
        #else
          return "portable";
        #endif
        }
    """,
    "path.cpp": """
        #include "path.h"
        #define JOIN_OF(a, b) a##b
        #define JOIN(a, b) JOIN_OF(a, b)
        const char *JOIN(shared_by_, QPACK_PATH)() { return shared(); }
    """,
    "api.cpp": """
        #include <string>
        #define EXPORT extern "C" __attribute__((visibility("default")))
        #define PATH(name) \\
          const char *shared_by_##name(); \\
          EXPORT const char *qpack_##name() { return shared_by_##name(); }
        PATH(portable)
        #ifdef QPACK_HAVE_AVX512
        PATH(avx512)
        #endif
        #ifdef QPACK_HAVE_AVX2
        PATH(avx2)
        #endif
        #ifdef QPACK_HAVE_NEON
        PATH(neon)
        #endif
        EXPORT int unrelated(int n) { return std::stoi(std::to_string(n)); }
    """,
}


def python(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    # Warnings of Python about hatchling's own files are not this project's.
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONWARN", "QPACK_"))}
    return subprocess.run(
        command, cwd=cwd, env=variables | environment, capture_output=True, encoding="utf-8", check=False
    )


def copy_project(folder: Path) -> Path:
    """What git holds or would add of what an sdist may hold."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ":!tests", ":!benchmarks"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, encoding="utf-8").stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of the real kernels, from a copy elsewhere, without a warning."""
    folder = copy_project(tmp_path_factory.mktemp("elsewhere"))
    made = python("scripts/build_cpu.py", cwd=folder, QPACK_CXXFLAGS="-Werror")
    assert made.returncode == 0, made.stderr
    return folder / LIBRARY


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of this project with toy kernels."""
    folder = copy_project(tmp_path / "project")
    shutil.rmtree(folder / KERNELS)
    (folder / KERNELS).mkdir()
    for name, text in TOY.items():
        (folder / KERNELS / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A compiler that lacks something."""
    script = tmp_path / "broken-c++"
    script.write_text("#!/bin/sh\necho fatal error: atomic: no such header >&2\nexit 1\n", encoding="utf-8")
    script.chmod(0o755)
    return str(script)


def wheel(project: Path, **environment: str) -> tuple[Path | None, str]:
    """The wheel of `project`, or none, and what was said. Hatchling leaves out what git ignores."""
    folder = project / "dist"
    ran = python("-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=project, **environment)
    found = list(folder.glob("*.whl"))
    assert (ran.returncode == 0) == bool(found), ran.stderr
    assert "Traceback" not in ran.stderr
    return (found[0] if found else None), ran.stderr


def test_the_same_sources_give_the_same_bytes_wherever_they_lie(library: Path):
    """And an editable install has brought the library up to date: `make` does, or pip install --editable."""
    assert (ROOT / LIBRARY).read_bytes() == library.read_bytes()


def test_the_library_shows_its_own_functions_and_needs_no_cxx_library(library: Path):
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, check=True, encoding="utf-8")
    names = [line.split()[-1] for line in symbols.stdout.splitlines()]
    assert "qpack_run" in names
    assert all(name.startswith("qpack_") for name in names), names
    needed = subprocess.run(["readelf", "-dW", library], capture_output=True, check=True, encoding="utf-8").stdout
    assert set(re.findall(r"\[(.*?)\]", needed)) <= release_wheels.GLIBC_FILES


def test_the_library_offers_the_paths_that_linux_says_this_processor_runs(library: Path):
    paths = ctypes.CDLL(str(library)).qpack_paths
    paths.restype = ctypes.c_char_p
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    assert paths().decode().split() == release_wheels.host_paths(cpuinfo)


def test_what_paths_share_asks_no_more_of_a_processor_than_the_least_of_them(project: Path):
    assert python("scripts/build_cpu.py", cwd=project, QPACK_CXXFLAGS="-Werror").returncode == 0
    toy = ctypes.CDLL(str(project / LIBRARY))
    for path in build_cpu.PATHS.get(platform.machine(), build_cpu.OTHER_MACHINE):
        function = getattr(toy, f"qpack_{path}")
        function.restype = ctypes.c_char_p
        assert function() == b"portable"
    assert not hasattr(toy, "unrelated")


def test_a_wheel_holds_the_library_and_is_for_this_platform(project: Path):
    assert python("scripts/build_cpu.py", "-o", "alone.so", cwd=project).returncode == 0
    made, _ = wheel(project)
    assert made
    assert made.name.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_')}.whl")
    with ZipFile(made) as archive:
        assert archive.read(IN_WHEEL) == (project / "alone.so").read_bytes()
        assert not [name for name in archive.namelist() if name.startswith("qpack_runtime/cpu/kernels")]
        about = next(name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        assert b"Root-Is-Purelib: false" in archive.read(about)
    first = made.read_bytes()
    made, _ = wheel(project)
    assert made
    assert made.read_bytes() == first
    assert not (project / LIBRARY).exists()


def test_an_sdist_is_enough_for_the_same_wheel(project: Path, tmp_path: Path):
    made, _ = wheel(project)
    packed = python("-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path / "sdist", cwd=project)
    assert packed.returncode == 0, packed.stderr
    with tarfile.open(next((tmp_path / "sdist").glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    again, _ = wheel(next((tmp_path / "unpacked").iterdir()))
    assert made
    assert again
    assert (again.name, again.read_bytes()) == (made.name, made.read_bytes())


def test_without_a_compiler_the_wheel_is_pure_and_one_line_says_so(project: Path, tmp_path: Path):
    (project / LIBRARY).write_bytes(b"of another build")
    made, said = wheel(project, PATH=str(tmp_path), CXX="")
    assert made
    assert made.name.endswith("-py3-none-any.whl")
    with ZipFile(made) as archive:
        assert IN_WHEEL not in archive.namelist()
        assert "qpack_runtime/engine.py" in archive.namelist()
    assert "installed without its CPU library: there is no C++ compiler (c++, g++, clang++): install one" in said
    assert sum("CPU library" in line or "compiler" in line for line in said.splitlines()) == 1


@pytest.mark.parametrize("compiler", ["broken", "absent"])
def test_a_compiler_that_fails_is_quoted_and_does_not_stop_an_install(project: Path, broken: str, compiler: str):
    made, said = wheel(project, CXX=broken if compiler == "broken" else "/no/such/c++")
    assert made
    assert made.name.endswith("-py3-none-any.whl")
    assert ("fatal error: atomic: no such header" if compiler == "broken" else "'/no/such/c++'") in said


def test_an_install_that_requires_the_library_stops_without_it(project: Path, broken: str):
    made, said = wheel(project, CXX=broken, QPACK_REQUIRE_CPU="1")
    assert made is None
    assert "QPACK_REQUIRE_CPU" in said
    assert "fatal error: atomic: no such header" in said


def test_an_error_in_a_source_is_quoted_with_its_line(project: Path):
    (project / KERNELS / "api.cpp").write_text("\nint wrong() { return nowhere; }\n", encoding="utf-8")
    made = python("scripts/build_cpu.py", cwd=project)
    assert made.returncode == 1
    assert "api.cpp:2:" in made.stderr
    assert "nowhere" in made.stderr
    assert "Traceback" not in made.stderr


def test_an_editable_install_puts_the_library_into_the_checkout_and_leaves_no_old_one(project: Path, broken: str):
    hooks = ["-m", "hatchling", "build", "-t", "wheel:editable", "--hooks-only"]
    assert python(*hooks, cwd=project).returncode == 0
    ctypes.CDLL(str(project / LIBRARY))
    assert python(*hooks, cwd=project, CXX=broken).returncode == 0
    assert list((project / LIBRARY).parent.glob("*.so*")) == []


@pytest.mark.parametrize(
    ("machine", "flags", "newest", "fault"),
    [
        ("x86_64", ["-static-libstdc++", "-static-libgcc"], (99, 0), ""),
        ("aarch64", ["-static-libstdc++", "-static-libgcc"], (99, 0), "the wheel is for AArch64"),
        ("x86_64", ["-Wl,--no-as-needed"], (99, 0), r"libstdc\+\+\.so\.6.*not every host has"),
        (
            "x86_64",
            ["-static-libstdc++", "-static-libgcc"],
            (2, 1),
            r"needs glibc 2[.\d]+, but the wheel promises 2\.1",
        ),
    ],
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64")
def test_a_release_refuses_a_library_that_not_every_host_can_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, flags: list[str], newest: tuple[int, int], fault: str
):
    source, made = tmp_path / "toy.cpp", tmp_path / "toy.so"
    source.write_text('#include <cstdio>\nextern "C" void toy() { std::puts("toy"); }\n', encoding="utf-8")
    subprocess.run([*build_cpu.find_compiler(), "-shared", "-fPIC", *flags, source, "-o", made], check=True)
    monkeypatch.setattr(release_wheels, "GLIBC", newest)
    if fault:
        with pytest.raises(release_wheels.WheelError, match=fault):
            release_wheels.check_library(made, machine)
    else:
        release_wheels.check_library(made, machine)


def test_zig_knows_every_processor_that_a_path_is_compiled_for():
    flags: list[str] = [flag for paths in build_cpu.PATHS.values() for path in paths.values() for flag in path]
    named = {flag for flag in flags if flag.startswith("-march=")}
    assert named == set(zig_cxx.PROCESSORS)


def test_zig_is_called_with_its_own_names(tmp_path: Path):
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "__init__.py").touch()
    (tmp_path / "ziglang" / "zig").write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    (tmp_path / "ziglang" / "zig").chmod(0o755)

    def ran(*arguments: str) -> str:
        made = python(
            ROOT / "scripts" / "zig_cxx.py", "x86_64-linux-gnu.2.28", *arguments, cwd=tmp_path, PYTHONPATH=str(tmp_path)
        )
        return made.stdout.strip() or made.stderr.strip()

    assert ran("-dumpmachine") == "x86_64-linux-gnu"
    assert ran("-c", "-march=x86-64-v3") == "c++ -target x86_64-linux-gnu.2.28 -c -mcpu=x86_64_v3"
    assert "-march=mips" in ran("-march=mips")


def test_a_wheel_for_another_platform_names_it(project: Path):
    made, _ = wheel(project, _PYTHON_HOST_PLATFORM="manylinux_2_28-x86_64")
    assert made
    assert made.name.endswith("-py3-none-manylinux_2_28_x86_64.whl")


def test_compilers_are_asked_in_order_and_cxx_may_have_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("clang++", "g++"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build_cpu.find_compiler() == [str(tmp_path / "g++")]
    monkeypatch.setenv("CXX", "clang++ -target 'a b'")
    assert build_cpu.find_compiler() == ["clang++", "-target", "a b"]
