"""Compiles the kernels of the CPU executor: `python scripts/build_cpu.py`. hatch_build.py and the Makefile run it, too.

Every source is compiled once for the oldest processor of its kind, but path.cpp once per code path, for the instruction
set that the path is named after. CXX is the compiler, QPACK_CXXFLAGS is added to the flags; what the compiler compiles
for, it says itself. The same sources and the same compiler give the same bytes, wherever they lie.

Only the standard library: this runs while qpack is being installed.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

CPU = Path(__file__).parents[1] / "runtime" / "qpack_runtime" / "cpu"
SOURCES, LIBRARY = CPU / "kernels", CPU / "libqpack_cpu.so"
COMPILERS = ("c++", "g++", "clang++")

COMPILE = (
    *("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"),
    # A sum must not depend on what a compiler fuses: every path gives the same tokens at every batch.
    *("-ffp-contract=off", "-fno-math-errno"),
    f"-ffile-prefix-map={SOURCES}=.",
)
# The C++ library is linked in, so that the host needs none, and not shown, so that it meets no other one.
LINK = ("-shared", "-pthread", "-static-libstdc++", "-static-libgcc", "-Wl,--version-script=exports")
EXPORTS = "{ global: qpack_*; local: *; };\n"

# From the least to the most that a path asks of a processor; with each the flags that GCC and Clang both take.
PATHS = {
    "x86_64": {
        "portable": (),
        "avx2": ("-march=x86-64-v3",),
        "avx512": ("-march=x86-64-v4", "-mavx512vnni"),
    },
    "aarch64": {
        "portable": (),
        "neon": ("-march=armv8.2-a+dotprod+fp16",),
    },
}
OTHER_MACHINE = {"portable": ()}


class NotBuiltError(Exception):
    """There is no library; the message is for people."""


@dataclass(frozen=True)
class Unit:
    """One call of the compiler."""

    name: str  # of the object file
    source: str
    flags: tuple[str, ...]


def build(output: Path, compiler: Sequence[str], flags: Sequence[str]) -> None:
    """Writes the library to `output`, whole or not at all. NotBuiltError has what the compiler said."""
    machine = ran([*compiler, "-dumpmachine"]).strip().partition("-")[0]
    planned = units(PATHS.get(machine, OTHER_MACHINE))
    with TemporaryDirectory(prefix="qpack-cpu-") as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        work = Path(name)

        def compiled(unit: Unit) -> str:
            # Random to GCC, and in the names it makes up, unless it is told.
            seed = f"-frandom-seed={unit.name}"
            # Names without folders, here and for the linker, so that none gets into what is made.
            ran(
                [*compiler, *COMPILE, seed, *unit.flags, *flags, "-c", unit.source, "-o", str(work / unit.name)],
                SOURCES,
            )
            return unit.name

        objects = list(pool.map(compiled, planned))
        (work / "exports").write_text(EXPORTS, encoding="utf-8")
        ran([*compiler, *LINK, *flags, *objects, "-o", LIBRARY.name], work)
        place(work / LIBRARY.name, output)


def units(paths: dict[str, tuple[str, ...]]) -> list[Unit]:
    """In the order of linking. An inline function that several units have is taken from the first of them, so that the
    baseline stands before the paths, and each path before those that ask for more."""
    have = tuple(f"-DQPACK_HAVE_{name.upper()}" for name in paths)
    names = sorted(source.name for source in SOURCES.glob("*.cpp") if source.name != "path.cpp")
    if not names:
        raise NotBuiltError(f"{SOURCES} has no sources; they come with the sdist of qpack-llm and with its repository")
    return [
        *(Unit(f"{name}.o", name, have) for name in names),
        *(Unit(f"path.{path}.o", "path.cpp", (f"-DQPACK_PATH={path}", *flags)) for path, flags in paths.items()),
    ]


def ran(command: Sequence[str], cwd: Path | None = None) -> str:
    environment = os.environ | {"LC_ALL": "C"}  # messages in ASCII, and in the language of this one
    process = subprocess.run(
        command, cwd=cwd, env=environment, check=False, capture_output=True, encoding="utf-8", errors="replace"
    )
    if process.returncode:
        raise NotBuiltError(f"{shlex.join(command)}\nfailed: {(process.stderr + process.stdout).strip()}")
    sys.stderr.write(process.stderr)  # warnings
    return process.stdout


def place(made: Path, output: Path) -> None:
    """A copy beside `output` takes its place: processes that have the old library mapped keep it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    copy = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        shutil.copy(made, copy)
        copy.replace(output)
    finally:
        copy.unlink(missing_ok=True)


def find_compiler() -> list[str]:
    """CXX, which may have arguments, or the first of the usual names."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        if not shutil.which(named[0]):
            raise NotBuiltError(f"CXX names the compiler {named[0]!r}, which there isn't: correct CXX or unset it")
        return named
    if found := next(filter(None, map(shutil.which, COMPILERS)), None):
        return [found]
    raise NotBuiltError(
        f"there is no C++ compiler ({', '.join(COMPILERS)}): install one (Debian and Ubuntu: g++; Fedora: gcc-c++ "
        "libstdc++-static), or name one in CXX"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Compiles the kernels of the CPU executor.")
    parser.add_argument(
        "-o", "--output", type=Path, default=LIBRARY, help="by default, where the runtime loads it from"
    )
    output = parser.parse_args().output
    try:
        build(output, find_compiler(), shlex.split(os.environ.get("QPACK_CXXFLAGS", "")))
    except NotBuiltError as error:
        output.unlink(missing_ok=True)  # one of other sources would be worse than none
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
