"""The files of a checkpoint that a bundle is made of, with their digests, which are taken beside the work on it."""

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Self, TypeVar

from qpack_packager.progress import Progress
from qpack_schemas.bundle_files import blocks_of
from qpack_schemas.manifest import SourceFile

Result = TypeVar("Result")


class SourceFiles:
    """Hashes the files `names` of `directory`, some at a time, from now on: the digests go into the manifest, and tell
    whether an unfinished bundle was made of the same bytes. Leaving the `with` block ends it, however far it is."""

    def __init__(self, directory: Path, names: Iterable[str]):
        self._directory, self._ended = directory, Event()
        self._sizes = {name: (directory / name).stat().st_size for name in sorted(names)}
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "source")
        self._entries = {name: self._pool.submit(self._entry, name) for name in self._sizes}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)

    def then(self, function: Callable[[list[SourceFile]], Result]) -> Future[Result]:
        """What `function` makes of all of them, as soon as they are hashed. Its result raises OSError for a file that
        can't be read."""
        return self._pool.submit(lambda: function([entry.result() for entry in self._entries.values()]))

    def all(self, progress: Progress) -> list[SourceFile]:
        """Waits for those that are not hashed yet, and shows it if there are any. Raises OSError for a file that can't
        be read."""
        left = {name: entry for name, entry in self._entries.items() if not entry.done()}
        if left:
            with progress.phase("source", sum(self._sizes[name] for name in left), "bytes") as step:
                for name, entry in left.items():
                    entry.result()
                    step(name, self._sizes[name])
        return [entry.result() for entry in self._entries.values()]

    def _entry(self, name: str) -> SourceFile:
        digest = hashlib.sha256()
        for block in blocks_of(self._directory / name):
            if self._ended.is_set():
                raise CancelledError
            digest.update(block)
        return {"path": name, "bytes": self._sizes[name], "sha256": digest.hexdigest()}
