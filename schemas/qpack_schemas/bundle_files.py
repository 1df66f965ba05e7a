"""Every file of a bundle is listed, no other is there, and each has the listed bytes.

A bundle holds data only and never points outside itself: no symlink, no device, no path that leaves the directory.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from qpack_schemas.errors import Finding
from qpack_schemas.manifest import FileEntry

MANIFEST = "manifest.json"
# No part of the bundle_id: provenance and signatures, which are made after it exists, and what a host measured of the
# bundle's quality, which another host measures otherwise. They lie at the root.
_DETACHED = re.compile(r"provenance\.intoto\.jsonl|signature\.[^/]+|quality\.(json|html)")
_BLOCK = 1 << 20  # bytes: what is read is still in the processor's cache when it is hashed


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    for block in blocks_of(path):
        digest.update(block)
    return digest.hexdigest()


def blocks_of(path: Path) -> Iterator[memoryview]:
    """The bytes of a file from front to back. Each block is gone when the next is taken."""
    with path.open("rb", buffering=0) as file:
        block = memoryview(bytearray(min(_BLOCK, os.fstat(file.fileno()).st_size + 1)))
        while count := file.readinto(block):
            yield block[:count]


def check_files(root: Path, listed: list[FileEntry], *, digests: bool = True) -> tuple[list[Finding], set[str]]:
    """Findings of the directory `root` against the manifest's `files`; with `digests` every byte is read.

    Also the paths that are regular files of the bundle itself, whole or not: no other may be opened."""
    findings: list[Finding] = []
    entries = {entry["path"]: (f"{MANIFEST}#/files/{index}", entry) for index, entry in enumerate(listed)}
    if len(entries) < len(listed):
        findings.append(Finding(f"{MANIFEST}#/files", "lists a path twice"))
    present = dict(_walk(root))
    for path, problem in present.items():
        if problem:
            findings.append(Finding(path, problem))
        elif path not in entries and path != MANIFEST and not _DETACHED.fullmatch(path):
            findings.append(Finding(path, "is not listed in the manifest"))
    for path, (place, entry) in entries.items():
        if path not in present:
            findings.append(Finding(path, f"is missing ({place} lists {entry['bytes']} bytes)"))
        elif not present[path]:
            findings += _compare(root / path, path, entry, digests=digests)
    return sorted(findings), {path for path, problem in present.items() if not problem}


def _walk(root: Path) -> Iterator[tuple[str, str]]:
    """(relative path, what is wrong with it or "") of everything below `root`; links are never followed."""
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as found:
            for entry in found:
                path = Path(entry.path).relative_to(root).as_posix()
                if entry.is_symlink():
                    yield path, f"is a symbolic link to {os.readlink(entry.path)!r}; a bundle holds only its own files"
                elif entry.is_dir():
                    folders.append(Path(entry.path))
                else:
                    yield path, "" if entry.is_file() else "is not a regular file"


def _compare(file: Path, path: str, entry: Mapping[str, object], *, digests: bool) -> Iterator[Finding]:
    size = file.stat().st_size
    if size != entry["bytes"]:
        yield Finding(path, f"has {size} bytes, the manifest says {entry['bytes']}")
    elif digests and (digest := sha256_of(file)) != entry["sha256"]:
        yield Finding(path, f"has sha256 {digest}, the manifest says {entry['sha256']}")
