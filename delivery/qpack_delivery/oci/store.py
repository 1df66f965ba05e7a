"""Bundles that `qpack-runtime serve oci://...` keeps on its host.

There is one place for each repository, so that an update moves only what changed. One that is named by its digest, and
is there, needs no network."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from qpack_delivery.oci.modelpack import digest_of, read_layers
from qpack_delivery.oci.pull import Pulled, pull
from qpack_delivery.oci.reference import Reference
from qpack_schemas.bundle_files import MANIFEST
from qpack_schemas.errors import InputError, UsageError

if TYPE_CHECKING:
    from qpack_delivery.signing.verify import Trust

_RECORD = "pulled.json"  # the registry's manifest, whose digest the bundle was pulled by


def default_store() -> Path:
    """Raises UsageError for a user without a home, as containers may have."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):
        raise UsageError("this user has no directory for caches", where=cache, remedy="name one with --bundle-store")
    return Path(cache) / "qpack" / "bundles"


def place_of(reference: Reference, store: Path) -> Path:
    """Where the store has the bundle of a repository. Repositories may be named below others, bundles not lie so."""
    return store / reference.registry.replace(":", "_") / reference.repository.replace("/", "+") / reference.name


def pull_into(
    reference: Reference, store: Path, *, plain_http: bool = False, trust: "Trust | None" = None
) -> Pulled | None:
    """Makes the bundle at `place_of` the one of `reference`. None: it is there, and its digest tells so without asking
    anyone. Whoever opens it checks its bytes. Raises what `pull` raises."""
    place = place_of(reference, store)
    record = place.with_name(_RECORD)
    if reference.digest and _is_there(place, record, reference.digest):
        return None
    pulled = pull(reference, place, plain_http=plain_http, trust=trust)
    passing = record.with_name(f".{_RECORD}.{os.getpid()}")
    passing.write_bytes(pulled.manifest)
    passing.replace(record)
    return pulled


def _is_there(place: Path, record: Path, digest: str) -> bool:
    try:
        raw = record.read_bytes()
        if digest_of(raw) != digest:
            return False
        layers = read_layers(raw, str(record))
        manifest = (place / MANIFEST).read_bytes()
        if f"sha256:{hashlib.sha256(manifest).hexdigest()}" != layers[MANIFEST].digest:
            return False
        return all((place / path).stat().st_size == layer.bytes for path, layer in layers.items())
    except (OSError, InputError):
        return False
