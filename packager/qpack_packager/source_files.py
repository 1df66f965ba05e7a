"""The files of a checkpoint that a bundle is made of, with their digests."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from qpack_packager.progress import Progress
from qpack_schemas.bundle_files import sha256_of
from qpack_schemas.manifest import SourceFile


def source_files(directory: Path, names: Iterable[str], progress: Progress) -> list[SourceFile]:
    """Hashes the files `names` of `directory`, some at a time: the digests go into the manifest, and tell whether an
    unfinished bundle was made of the same bytes."""
    sizes = {name: (directory / name).stat().st_size for name in sorted(names)}

    def entry(name: str) -> SourceFile:
        return {"path": name, "bytes": sizes[name], "sha256": sha256_of(directory / name)}

    with (
        progress.phase("source", sum(sizes.values()), "bytes") as step,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        entries: list[SourceFile] = []
        for made in pool.map(entry, sizes):  # progress is told by one thread, so that its lines stay whole
            entries.append(made)
            step(made["path"], made["bytes"])
        return entries
