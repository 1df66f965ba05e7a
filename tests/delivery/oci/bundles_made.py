"""Bundles of any size for tests of moving them: a real one with more files."""

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

from qpack_schemas.bundle_files import MANIFEST, sha256_of
from qpack_schemas.manifest import seal


def bytes_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def bundle_with(bundle: Path, output: Path, files: Mapping[str, bytes]) -> Path:
    """A copy of `bundle` that has these files as well, and is as whole as it was."""
    shutil.copytree(bundle, output)
    for name, data in files.items():
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_bytes(data)
    reseal(output)
    return output


def reseal(bundle: Path) -> None:
    """Makes the manifest list the files that are there."""
    manifest = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
    files = {path.relative_to(bundle).as_posix(): path for path in bundle.rglob("*") if path.is_file()}
    manifest["files"] = [
        {"path": name, "bytes": file.stat().st_size, "sha256": sha256_of(file)}
        for name, file in sorted(files.items())
        if name != MANIFEST
    ]
    (bundle / MANIFEST).write_bytes(seal(manifest))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
