"""Builds the wheels of a release: `python scripts/release_wheels.py dist`, or `make wheels`.

One wheel per kind of processor, compiled with Zig (zig_cxx.py) for hosts as old as glibc 2.28. None gets to the folder
before all are checked: the library in a wheel is for its processor, needs nothing beyond that glibc, and, where this
host can run it, loads from an empty environment and sees what this host can do. Needs hatchling, ziglang and readelf.
"""

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
LIBRARY = "qpack_runtime/cpu/libqpack_cpu.so"
GLIBC: tuple[int, ...] = (2, 28)
MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}  # with readelf's names

# What glibc 2.28 consists of, as far as a C++ library with threads can ask for it.
GLIBC_FILES = {
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}

# What Linux must say of a processor before a path of the library may run there, in /proc/cpuinfo's words.
PATH_FLAGS = {
    "avx512": "avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni",
    "avx2": "avx2 fma f16c bmi1 bmi2 abm movbe",
    "neon": "asimddp asimdhp fphp atomics asimdrdm crc32",
    "portable": "",
}

LOAD = """
import ctypes, sys
paths = ctypes.CDLL(sys.argv[1]).qpack_paths
paths.restype = ctypes.c_char_p
print(paths().decode())
"""


class WheelError(Exception):
    """A wheel that must not be published; the message is for people."""


def build(machine: str, folder: Path) -> Path:
    """A wheel for `machine` in `folder`."""
    compiler = [sys.executable, str(ROOT / "scripts" / "zig_cxx.py"), f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"]
    manylinux = f"manylinux_{GLIBC[0]}_{GLIBC[1]}"
    environment = os.environ | {
        "CXX": shlex.join(compiler),
        "QPACK_CXXFLAGS": "",
        "QPACK_REQUIRE_CPU": "1",
        "_PYTHON_HOST_PLATFORM": f"{manylinux}-{machine}",
    }
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob(f"*-py3-none-{manylinux}_{machine}.whl"))


def check_library(library: Path, machine: str) -> None:
    """Of a shared library: what it was compiled for, and what it needs."""
    command = ["readelf", "--wide", "--file-header", "--dynamic", "--version-info", str(library)]
    said = subprocess.run(command, env=os.environ | {"LC_ALL": "C"}, check=True, capture_output=True, encoding="utf-8")
    found = re.findall(r"^ *Machine: *(.*\S)", said.stdout, re.MULTILINE)
    if found != [MACHINES[machine]]:
        raise WheelError(f"{library.name} is for {found[0]}, but the wheel is for {MACHINES[machine]}")
    if foreign := sorted(set(re.findall(r"Shared library: \[(.*?)\]", said.stdout)) - GLIBC_FILES):
        raise WheelError(
            f"{library.name} for {machine} needs {', '.join(foreign)}, which not every host has: link it in"
        )
    versions = {tuple(map(int, text.split("."))) for text in re.findall(r"\bGLIBC_([\d.]+)", said.stdout)}
    newest = max(versions, default=(0,))
    if newest > GLIBC:
        texts = [".".join(map(str, version)) for version in (newest, GLIBC)]
        raise WheelError(f"{library.name} for {machine} needs glibc {texts[0]}, but the wheel promises {texts[1]}")


def check_install(wheel: Path, folder: Path) -> None:
    """Installs `wheel` into a new environment in `folder`, and asks the library what it would run on this host."""
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-index", "--no-deps", wheel], check=True)
    library = next(folder.glob(f"lib/*/site-packages/{LIBRARY}"))
    command = [folder / "bin" / "python", "-c", LOAD, library]
    paths = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout.split()
    expected = host_paths(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    if paths != expected:
        raise WheelError(f"{wheel.name} would run {paths} here, but by /proc/cpuinfo this host can run {expected}")


def host_paths(cpuinfo: str) -> list[str]:
    """The paths that a host with this /proc/cpuinfo can run, best first."""
    lines = [line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))]
    flags = set(lines[0].partition(":")[2].split())
    return [path for path, needed in PATH_FLAGS.items() if flags.issuperset(needed.split())]


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds and checks the wheels of a release.")
    parser.add_argument("folder", type=Path, help="where they go when all of them are right")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".wheels-") as name:
        work, wheels = Path(name), list[Path]()
        try:
            for machine in MACHINES:
                wheels.append(build(machine, work))
                with ZipFile(wheels[-1]) as archive:
                    check_library(Path(archive.extract(LIBRARY, work / machine)), machine)
                if machine == platform.machine():
                    check_install(wheels[-1], work / "venv")
        except WheelError as error:
            print(error, file=sys.stderr)
            return 1
        for wheel in wheels:
            print(wheel.replace(folder / wheel.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
