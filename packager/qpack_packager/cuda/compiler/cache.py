"""Compiled kernels kept between builds, each under the digest of all that it was made from."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from qpack_packager.check.replace_file import replace_file
from qpack_packager.cuda.compiler import worker
from qpack_packager.cuda.compiler.compiled import CompiledKernel
from qpack_packager.cuda.spec import KernelSpec
from qpack_packager.cuda.targets import Target
from qpack_schemas.errors import UsageError
from qpack_schemas.strict_json import dump_compact

FORMAT = 1  # of an entry


class KernelCache:
    """A folder with a file per compiled kernel: its digest, its facts as JSON, its image. Several builds may use it at
    once. An entry that is damaged or cannot be read counts as none."""

    def __init__(self, folder: Path):
        self.folder = folder

    def get(self, key: str) -> CompiledKernel | None:
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        digest, _, body = data.partition(b"\n")
        if digest != _digest(key, body):
            return None
        facts, _, image = body.partition(b"\n")
        return CompiledKernel(image, **json.loads(facts))

    def put(self, key: str, kernel: CompiledKernel) -> None:
        facts = asdict(kernel)
        image = facts.pop("image")
        body = dump_compact(facts).rstrip(b"\n") + b"\n" + image
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path(key), _digest(key, body) + b"\n" + body)

    def _path(self, key: str) -> Path:
        return self.folder / key


def _digest(key: str, body: bytes) -> bytes:
    """Of the key, too: an entry under another's name is damaged."""
    return hashlib.sha256(key.encode("ascii") + body).hexdigest().encode("ascii")


def default_folder() -> Path:
    """By the XDG base directory specification: `qpack/kernels` in $XDG_CACHE_HOME, or else in ~/.cache."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # "All paths must be absolute [...] consider the path invalid and ignore it"
        return named / "qpack" / "kernels"
    try:
        return Path.home() / ".cache" / "qpack" / "kernels"
    except RuntimeError:
        message = "compiled kernels are kept in the user's cache folder, and this user has no home directory"
        raise UsageError(message, remedy="set XDG_CACHE_HOME to an absolute path") from None


def key(spec: KernelSpec, target: Target, compilers: Mapping[str, str], sources: str) -> str:
    """`sources`: the digest of everything that the kernel may be made from."""
    parts = [FORMAT, asdict(spec), asdict(target), asdict(target.architecture), dict(compilers), sources]
    return hashlib.sha256(dump_compact(parts)).hexdigest()


def digest_sources(package: str) -> str:
    """Of all modules of `package`, since kernels call each other's helpers, and of the worker that compiles them."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise AssertionError(f"{package} is no package")
    folder = Path(found.submodule_search_locations[0])
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*.py")} | {"": Path(worker.__file__)}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    return hashlib.sha256(dump_compact(digests)).hexdigest()
