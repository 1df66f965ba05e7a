"""Signing: the statement that the build wrote, with a version, in an envelope beside the bundle's own files."""

from dataclasses import dataclass
from pathlib import Path

from qpack_delivery.signing.detached import PROVENANCE, SIGNATURE, locked, read_detached, write_detached
from qpack_delivery.signing.envelope import Envelope, Signature, pae
from qpack_delivery.signing.keys import PrivateKey
from qpack_delivery.signing.semver import GRAMMAR, is_version
from qpack_delivery.signing.statement import PAYLOAD_TYPE, Statement
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import InputError, UsageError


@dataclass(frozen=True)
class Signed:
    bundle_id: str
    version: str | None
    keyid: str
    algorithm: str
    keyids: tuple[str, ...]  # of all signatures that lie there now


def sign_bundle(bundle: Path, key: PrivateKey, version: str | None = None) -> Signed:
    """Signs the bundle, every byte of which is hashed first.

    A signature of another key over the same statement stays, one of this key is replaced. A signature over another
    statement, say one of another version, is never lost: then nothing is written.

    Raises InputError if the build left no statement about this bundle, UsageError for such a version or signature, and
    what `open_bundle` raises."""
    if version is not None and not is_version(version):
        raise UsageError(f"{version!r} is no version", remedy=f"give {GRAMMAR}")
    opened = open_bundle(bundle)
    public = key.public
    with locked(bundle):
        statement = _statement(bundle, opened.bundle_id)
        payload = statement.encode(version)
        signatures = [
            *(one for one in _signatures(bundle, statement, version) if one.keyid != public.keyid),
            Signature(public.keyid, key.sign(pae(PAYLOAD_TYPE, payload))),
        ]
        write_detached(bundle / SIGNATURE, Envelope(PAYLOAD_TYPE, payload, tuple(signatures)).encode())
    keyids = tuple(sorted(one.keyid for one in signatures))
    return Signed(opened.bundle_id, version, public.keyid, public.algorithm, keyids)


def _statement(bundle: Path, bundle_id: str) -> Statement:
    where = str(bundle / PROVENANCE)
    remedy = "build the bundle again: `qpack build` writes it"
    if (data := read_detached(bundle / PROVENANCE)) is None:
        message = "is missing; it says how the bundle was built, and is what is signed"
        raise InputError(message, where=where, remedy=remedy)
    statement = Statement.parse(data, where)
    if statement.bundle_id != bundle_id:
        message = f"is about another bundle, {statement.bundle_id}; this one is {bundle_id}"
        raise InputError(message, where=where, remedy=remedy)
    return statement


def _signatures(bundle: Path, statement: Statement, version: str | None) -> tuple[Signature, ...]:
    """Those that lie there already. Raises UsageError if they are over another statement."""
    where = str(bundle / SIGNATURE)
    anew = f"delete {SIGNATURE} to sign anew"
    if (data := read_detached(bundle / SIGNATURE)) is None:
        return ()
    try:
        there = Envelope.parse(data, where)
        other = Statement.parse(there.payload, where)
    except InputError as error:
        raise UsageError(f"can't be added to: {error.message}", where=where, remedy=anew) from None
    if (there.payload_type, there.payload) == (PAYLOAD_TYPE, statement.encode(version)):
        return there.signatures
    if other.bundle_id != statement.bundle_id:
        message = f"signs another bundle, {other.bundle_id}; this one is {statement.bundle_id}"
        raise UsageError(message, where=where, remedy=anew)
    if other.version != version:
        message = f"signs {_named(other.version)}, and you ask for {_named(version)}"
        raise UsageError(message, where=where, remedy=f"give the same --version to add a signature, or {anew}")
    raise UsageError(f"signs something else than {PROVENANCE} says", where=where, remedy=anew)


def _named(version: str | None) -> str:
    return "no version" if version is None else f"version {version}"
