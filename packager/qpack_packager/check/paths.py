"""Which files `qpack check` looks at, and which of them must not be written."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from qpack_packager.textfix.kinds import Kind, kind_of, text_files
from qpack_schemas.errors import UsageError
from qpack_schemas.outputs import bundle_around

BUNDLE_TEXT = ("model", "LICENSES")  # the folders of a bundle that hold the checkpoint's text


@dataclass(frozen=True)
class Found:
    """A file to look at or, with `error`, a directory that can't be looked into."""

    path: Path
    bundle: Path | None = None  # whose manifest seals the file
    error: OSError | None = None


def find_files(paths: Iterable[Path]) -> tuple[list[Found], int]:
    """Every file that `paths` name or hold, once, in the order of `paths` and then of names; and how many files were
    named that are no text by their name, so that `MODEL/*` may be given.

    Raises UsageError for a path that does not exist."""
    found: dict[str, Found] = {}
    passed_over = 0
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError("no such file or directory", where=str(path), remedy="name an existing one")
        if path.is_dir():
            held = list(_held(path))
        elif kind_of(path.name) is Kind.NEVER:
            held, passed_over = [], passed_over + 1
        else:
            held = [Found(path, _bundle_of(path.absolute().parent))]
        found.update({key: each for each in held if (key := os.path.normpath(each.path)) not in found})
    return list(found.values()), passed_over


def _held(folder: Path) -> Iterator[Found]:
    for error in _closed_folders(folder):
        yield Found(Path(error.filename), error=error)
    for path in text_files(folder):
        bundle = _bundle_of(path.absolute().parent)
        if bundle is None or path.absolute().relative_to(bundle).parts[0] in BUNDLE_TEXT:
            yield Found(path, bundle)


def _closed_folders(folder: Path) -> list[OSError]:
    errors: list[OSError] = []
    for _, subfolders, _ in os.walk(folder, onerror=errors.append):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
    return errors


_bundle_of = cache(bundle_around)
