"""Where what a command writes may lie: in no bundle, which holds only files that its manifest lists."""

import os
from pathlib import Path

from qpack_schemas.bundle_files import MANIFEST
from qpack_schemas.errors import UsageError

_PROGRAMS = "programs"  # with the manifest, what tells a bundle from another directory


def refuse_in_bundle(output: Path) -> None:
    """Raises UsageError if a file or directory made at `output` would lie in a bundle, whatever links lead there."""
    # Both what is made beside the name and what a link of that name leads to.
    for folder in (os.path.realpath(output.parent), os.path.dirname(os.path.realpath(output))):
        if bundle := bundle_around(Path(folder)):
            raise UsageError(
                f"lies in the bundle {bundle}, which holds only files that its manifest lists",
                where=str(output),
                remedy="name an output outside of it",
            )


def bundle_around(folder: Path) -> Path | None:
    """The bundle that an absolute directory, there or not, is or lies in."""
    return next((each for each in (folder, *folder.parents) if _is_bundle(each)), None)


def _is_bundle(folder: Path) -> bool:
    return os.path.isfile(folder / MANIFEST) and os.path.isdir(folder / _PROGRAMS)
