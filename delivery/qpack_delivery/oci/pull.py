"""`qpack pull`: manifest -> what this host has already -> the blobs that it lacks -> checks -> the switch."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qpack_delivery.oci.arrival import Arrival, arriving
from qpack_delivery.oci.connection import Connection, RegistryError
from qpack_delivery.oci.download import fetch_blob
from qpack_delivery.oci.files import link_or_copy, sync_folders
from qpack_delivery.oci.local import Local, holds, previous_of, refuse_others
from qpack_delivery.oci.modelpack import IMAGE_MANIFEST, Layer, digest_of, read_layers
from qpack_delivery.oci.reference import Reference
from qpack_delivery.oci.transfer import Moved, transfer
from qpack_delivery.progress import Progress, Silent, Step
from qpack_schemas.bundle import open_bundle
from qpack_schemas.bundle_files import MANIFEST
from qpack_schemas.errors import Finding, FitError, InputError, IntegrityError, TrustError, UsageError, VersionError
from qpack_schemas.outputs import refuse_in_bundle
from qpack_schemas.strict_json import load_strict

if TYPE_CHECKING:
    from qpack_delivery.signing.verify import Trust

_MOST_HEAD = 64 << 20  # bytes of manifest.json, and of a file that it doesn't list, such as a signature


@dataclass(frozen=True)
class Pulled:
    manifest: bytes  # the registry's
    bundle_id: str
    bytes_moved: int  # of blobs
    bytes_there: int
    changed: bool  # False: this very bundle was there
    previous: Path | None  # the bundle whose place it took

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)


def pull(
    reference: Reference,
    output: Path,
    *,
    plain_http: bool = False,
    trust: "Trust | None" = None,
    progress: Progress | None = None,
) -> Pulled:
    """The bundle of `reference` at `output`, whole, checked and, with `trust`, vouched for; until then `output` is what
    it was. A bundle that is there gives what the two have in common, and is `output`.previous afterwards.

    Raises RegistryError, TrustError, FitError or UsageError. What has come by then is not moved again."""
    progress, output = progress or Silent(), output.absolute()
    if output.name in ("", ".."):
        raise UsageError("is no place for a bundle", where=str(output), remedy="name a directory that is to be made")
    refuse_in_bundle(output)
    refuse_others(output)
    refuse_others(previous_of(output))
    connection = Connection(reference, plain_http=plain_http)
    raw = _fetch_manifest(connection)
    layers = read_layers(raw, str(reference))
    total = sum(layer.bytes for layer in layers.values())
    bundle_id = layers[MANIFEST].digest.removeprefix("sha256:")
    with arriving(output, digest_of(raw), progress) as arrival:
        if holds(output, layers):
            _check_trust(reference, output, bundle_id, trust)
            return Pulled(raw, bundle_id, 0, total, False, None)
        local = Local(arrival.bundle, output, previous_of(output))
        moved = _fetch_head(connection, layers, arrival, local)
        _check_trust(reference, arrival.bundle, bundle_id, trust)
        with progress.phase("compare", total, "bytes") as step:
            lacking = _take_over(layers.values(), arrival, local, step)
        left = _check_disk(lacking, arrival)
        with progress.phase("pull", left, "bytes") as step:
            moved += _fetch(connection, lacking, arrival, step)
        _check(reference, arrival)
        sync_folders(arrival.bundle)
        previous = arrival.switch(output)
    return Pulled(raw, bundle_id, moved, max(total - moved, 0), True, previous)


def _fetch_manifest(connection: Connection) -> bytes:
    reference = connection.reference
    answer = connection.request(
        "GET", f"manifests/{reference.target}", expect=(200, 404), headers={"Accept": IMAGE_MANIFEST}
    )
    if answer.status == 404:
        raise RegistryError(
            "the registry has no such bundle", where=str(reference), status=404,
            remedy="look at the name and the tag; some registries say so where access is lacking",
        )  # fmt: skip
    if reference.digest not in (None, found := digest_of(answer.data)):
        finding = Finding("manifest", f"the registry's bytes have {found}, asked for was {reference.digest}")
        raise IntegrityError("the registry gives another manifest:", [finding], where=str(reference))
    return answer.data


def _fetch_head(connection: Connection, layers: Mapping[str, Layer], arrival: Arrival, local: Local) -> int:
    """manifest.json and the files that it doesn't list, which are small; then the contract says whether the rest may
    come. Returns bytes that were moved."""
    if (size := layers[MANIFEST].bytes) > _MOST_HEAD:
        raise _damaged(connection.reference, [Finding(MANIFEST, f"has {size} bytes, which are too many")], arrival)
    moved = _fetch(connection, _take_over([layers[MANIFEST]], arrival, local), arrival)
    entries = _entries(arrival.bundle / MANIFEST)
    beside = [layer for path, layer in layers.items() if entries and path not in entries and path != MANIFEST]
    findings = [Finding(layer.path, "is not listed in the manifest") for layer in beside if layer.bytes > _MOST_HEAD]
    for path, said in entries.items():
        layer = layers.get(path)
        if layer is None:
            findings.append(Finding(path, "is listed in the manifest, and the registry has no layer for it"))
        elif (layer.digest, layer.bytes) != said:
            message = f"the layer has {layer.bytes} bytes, {layer.digest}; the manifest says {said[1]} bytes, {said[0]}"
            findings.append(Finding(path, message))
    if not findings:
        moved += _fetch(connection, _take_over(beside, arrival, local), arrival)
        try:
            open_bundle(arrival.bundle, digests=False)
        except IntegrityError as error:  # of what is listed, most is still missing
            findings = [one for one in error.findings if one.where not in entries]
        except VersionError as error:
            error.where = str(connection.reference)
            raise
    if findings:
        raise _damaged(connection.reference, findings, arrival)
    return moved


def _entries(manifest: Path) -> dict[str, tuple[str, int]]:
    """Path -> digest and bytes; empty if it can't be read, which open_bundle says in its own words."""
    try:
        document = load_strict(manifest)
        return {entry["path"]: (f"sha256:{entry['sha256']}", entry["bytes"]) for entry in document["files"]}
    except (InputError, KeyError, TypeError):
        return {}


def _take_over(layers: Iterable[Layer], arrival: Arrival, local: Local, step: Step | None = None) -> list[Layer]:
    """Puts what this host has already in its place. Returns the rest."""
    lacking: list[Layer] = []
    for layer in layers:
        place, found = arrival.bundle / layer.path, local.find(layer)
        if found != place:
            place.unlink(missing_ok=True)
            if found is None:
                lacking.append(layer)
            else:
                link_or_copy(found, place)
        if step is not None:
            step(layer.path, layer.bytes)
    return lacking


def _check_disk(lacking: Sequence[Layer], arrival: Arrival) -> int:
    """Bytes that are still to come. Raises FitError if the disk hasn't room for them."""
    held = {layer.digest: arrival.held(layer) for layer in lacking}
    left = sum(layer.bytes for layer in lacking) - sum(held.values())
    if left > (free := shutil.disk_usage(arrival.folder).free):
        raise FitError(
            f"{left:,} bytes are still to come, the disk has {free:,} left", where=str(arrival.folder),
            remedy="free some space, or name an output on another disk",
        )  # fmt: skip
    return left


def _fetch(connection: Connection, lacking: Sequence[Layer], arrival: Arrival, step: Step | None = None) -> int:
    """Each blob once, into its place, or into several. Returns bytes that were moved."""
    places: dict[str, list[Layer]] = {}
    for layer in lacking:
        places.setdefault(layer.digest, []).append(layer)
    amounts: list[int] = []

    def fetch(layer: Layer, moved: Moved) -> None:
        blob = arrival.blob(layer)

        def came(amount: int) -> None:
            amounts.append(amount)
            moved(amount)

        fetch_blob(connection, layer, blob, came)
        for one in places[layer.digest]:
            link_or_copy(blob, arrival.bundle / one.path)
        blob.unlink()

    transfer((same[0] for same in places.values()), fetch, step or (lambda unit, amount=1: None))
    return sum(amounts)


def _check(reference: Reference, arrival: Arrival) -> None:
    try:
        open_bundle(arrival.bundle, digests=False)  # each file's digest was compared as it came
    except IntegrityError as error:
        raise _damaged(reference, error.findings, arrival) from None


def _check_trust(reference: Reference, bundle: Path, bundle_id: str, trust: "Trust | None") -> None:
    """What a signature is about is manifest.json, and that says the digest of all that is let in after it."""
    if trust is not None:
        from qpack_delivery.signing.verify import check_signature

        try:
            check_signature(bundle, bundle_id, trust)
        except TrustError as error:
            error.where = error.where.replace(str(bundle), str(reference))
            raise


def _damaged(reference: Reference, findings: list[Finding], arrival: Arrival) -> IntegrityError:
    """What the registry has is wrong, so that nothing of it is kept."""
    shutil.rmtree(arrival.folder, ignore_errors=True)
    return IntegrityError(
        "the bundle in the registry is damaged:", findings, where=str(reference), remedy="push it again"
    )
