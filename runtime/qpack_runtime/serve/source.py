"""Where the bundle that is served comes from: a directory, or a registry, out of which it is pulled first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qpack_runtime.serve.logs import log
from qpack_runtime.serve.options import ServeOptions
from qpack_runtime.signature import trust_of
from qpack_schemas.errors import InputError


@dataclass(frozen=True)
class Source:
    bundle: Path  # where it lies, after `fetch` at the latest
    name: str  # of the model in the API, unless another is asked for
    fetch: Callable[[], None] | None = None


def source_of(bundle: Path | str, boot_choices: Mapping[str, Any], options: ServeOptions) -> Source:
    """A str is a reference to a registry; what that takes is imported for it alone. Raises UsageError."""
    if isinstance(bundle, Path):
        return Source(bundle, bundle.resolve().name)
    from qpack_delivery.oci.reference import Reference
    from qpack_delivery.oci.store import default_store, place_of, pull_into

    reference = Reference.parse(bundle)
    store = options.bundle_store or default_store()
    trust = trust_of(
        boot_choices["require_signature"], boot_choices["pubkeys"], boot_choices["min_version"],
        quick=boot_choices["verify"] == "quick",
    )  # fmt: skip

    def fetch() -> None:
        log("pulling", reference=str(reference))
        try:
            pulled = pull_into(reference, store, plain_http=options.plain_http, trust=trust)
        except OSError as error:
            message = error.strerror or str(error)
            where = str(error.filename or store)
            raise InputError(message, where=where, remedy="let --bundle-store name a directory with room") from None
        if pulled is None:
            log("pulled", reference=str(reference), bytes_moved=0)
        else:
            log("pulled", reference=str(reference), digest=pulled.digest, bytes_moved=pulled.bytes_moved)

    return Source(place_of(reference, store), reference.name, fetch)
