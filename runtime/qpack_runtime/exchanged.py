"""An update puts another bundle in a directory's place; whoever reads file after file must not get some of each."""

from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_files import MANIFEST, sha256_of
from qpack_schemas.errors import InputError


def refuse_exchanged(bundle: Bundle) -> None:
    """Called when everything has been read that is needed of an open bundle. Raises InputError if its path leads to
    another one by now, or to none."""
    try:
        there = sha256_of(bundle.path / MANIFEST)
    except OSError:
        there = None
    if there != bundle.bundle_id:
        raise InputError(
            "another bundle took its place while it was booted", where=str(bundle.path), remedy="boot again"
        )
