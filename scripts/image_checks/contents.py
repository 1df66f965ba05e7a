"""What lies in an image's files."""

import os
import re
import stat
from pathlib import Path

from .host import PIP_FOLDER

# Programs and Python packages that build things. Triton brings the assembler for GPUs.
COMPILERS = r"(?:[\w-]+-)?(?:gcc|g\+\+|c\+\+|cc|cpp|clang|ld|as|make)(?:-\d+)?|nvcc"
PACKAGES = {"torch", "triton", "transformers", "huggingface_hub", "pip", "setuptools", "wheel"}
FORBIDDEN = {
    "runtime": (re.compile(rf"(?:{COMPILERS}|ptxas|git|pip[\d.]*|curl|wget)"), PACKAGES),
    "packager": (re.compile(COMPILERS), PACKAGES - {"triton"}),
}


def megabytes(root: Path) -> float:
    """The sum of the files' sizes, each once however many names it has."""
    sizes = {(s.st_dev, s.st_ino): s.st_size for _, s in _files(root)}
    return sum(sizes.values()) / 1e6


def forbidden(root: Path, target: str) -> list[str]:
    """Paths in the image that must not be there."""
    program, packages = FORBIDDEN[target]
    found = []
    for folder, names, files in os.walk(root):
        inside = Path("/", Path(folder).relative_to(root))
        if inside.name in ("bin", "sbin"):
            found += [str(inside / name) for name in files if program.fullmatch(name)]
        if inside.name in ("site-packages", "dist-packages"):
            found += [str(inside / name) for name in names if name in packages]
    return found


def of_the_host(root: Path) -> list[str]:
    """Files by which this host's way to its packages would have got into the image."""
    return [str(path) for path in Path(f"{root}{PIP_FOLDER}").glob("*")]


def settable(root: Path) -> list[str]:
    """Files outside Debian's own packages that give rights to who runs them, and those that anybody may write."""
    own = [(path, s) for path, s in _files(root) if path.is_relative_to(root / "opt") or path == root / "bundle"]
    return [str(path) for path, s in own if not stat.S_ISLNK(s.st_mode) and s.st_mode & (stat.S_ISUID | stat.S_IWOTH)]


def _files(root: Path) -> list[tuple[Path, os.stat_result]]:
    paths = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    return [(path, path.lstat()) for path in paths]
