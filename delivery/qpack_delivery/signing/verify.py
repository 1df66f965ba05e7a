"""Verifying: one of the trusted keys has signed that this very bundle is the one that was built."""

from dataclasses import dataclass
from pathlib import Path

from qpack_delivery.signing.detached import PROVENANCE, SIGNATURE, read_detached
from qpack_delivery.signing.envelope import Envelope
from qpack_delivery.signing.keys import PublicKey
from qpack_delivery.signing.semver import GRAMMAR, is_version, precedence
from qpack_delivery.signing.statement import PAYLOAD_TYPE, Statement
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import InputError, TrustError, UsageError


class Trust:
    """Whose signature counts, and which version is new enough. The keys are read at once, before gigabytes are hashed.

    Raises InputError for a file that is no public key, UsageError without any, or for a `min_version` that is none."""

    def __init__(self, pubkeys: tuple[Path, ...], min_version: str | None = None):
        if not pubkeys:
            raise UsageError("no key is trusted, so no signature counts", remedy="give --pubkey FILE")
        self.min_version = min_version
        if min_version is not None and not is_version(min_version):
            raise UsageError(f"--min-version {min_version!r} is no version", remedy=f"give {GRAMMAR}")
        keys = [PublicKey.read(path) for path in pubkeys]
        self.keys = tuple({key.keyid: key for key in keys}.values())


@dataclass(frozen=True)
class Verified:
    bundle_id: str
    version: str | None
    signers: tuple[PublicKey, ...]  # those of the trusted keys that have signed
    statement: Statement

    def __str__(self) -> str:
        named = "without a version" if self.version is None else f"as version {self.version}"
        return f"signed {named} by {', '.join(key.keyid for key in self.signers)}"


def verify_bundle(bundle: Path, trust: Trust) -> Verified:
    """Hashes every byte of the bundle, then does what `check_signature` does. Raises what `open_bundle` raises, too."""
    return check_signature(bundle, open_bundle(bundle).bundle_id, trust)


def check_signature(bundle: Path, bundle_id: str, trust: Trust) -> Verified:
    """Checks the signature of a bundle that was opened with all its digests, so that its bundle_id stands for every
    byte. Raises TrustError, which says what is wrong with it."""
    try:
        return _check(bundle, bundle_id, trust)
    except InputError as error:
        remedy = "copy the bundle again, or delete the file and sign anew"
        raise TrustError(error.message, where=error.where, remedy=remedy) from None


def _check(bundle: Path, bundle_id: str, trust: Trust) -> Verified:
    where = str(bundle / SIGNATURE)
    if (data := read_detached(bundle / SIGNATURE)) is None:
        remedy = "sign it with `qpack sign` where it is built"
        raise TrustError("the bundle is not signed: there is no such file", where=where, remedy=remedy)
    envelope = Envelope.parse(data, where)
    signers = _signers(envelope, trust, where)
    # Only now is the payload worth reading: somebody who is trusted has written it.
    if envelope.payload_type != PAYLOAD_TYPE:
        raise InputError(f"signs a {envelope.payload_type!r}, not {PAYLOAD_TYPE}", where=where)
    statement = Statement.parse(envelope.payload, where)
    if statement.bundle_id != bundle_id:
        raise TrustError(
            f"the signature is that of another bundle: it is over bundle_id {statement.bundle_id}, this is {bundle_id}",
            where=where,
            remedy="the signature or the manifest was exchanged: copy the bundle again from where it was signed",
        )
    _check_version(statement.version, trust.min_version, where)
    _check_provenance(bundle, statement)
    return Verified(bundle_id, statement.version, signers, statement)


def _signers(envelope: Envelope, trust: Trust, where: str) -> tuple[PublicKey, ...]:
    """Each signature is tried with each key: a keyid is a hint that anybody can write."""
    data, signatures = envelope.signed, envelope.signatures
    if found := tuple(key for key in trust.keys if any(key.verifies(one.sig, data) for one in signatures)):
        return found
    named = sorted({one.keyid for one in signatures})
    trusted = [key.keyid for key in trust.keys]
    if claimed := [keyid for keyid in trusted if keyid in named]:
        raise TrustError(
            f"the signature of key {claimed[0]} does not fit what is signed: one of the two was altered",
            where=where,
            remedy="copy the bundle again from where it was signed",
        )
    # Written by anybody, so shown as one line and cut.
    by = ", ".join(ascii(keyid)[1:-1][:64] or "a key without a name" for keyid in named[:4]) or "nobody"
    raise TrustError(
        f"no trusted key has signed it: signed by {by}; trusted {', '.join(trusted)}",
        where=where,
        remedy="give the --pubkey of who signed it, if you trust them",
    )


def _check_version(version: str | None, least: str | None, where: str) -> None:
    if least is None:
        return
    remedy = f"take a bundle of version {least} or newer"
    if version is None:
        message = f"the signature says no version, and at least {least} is wanted"
        raise TrustError(message, where=where, remedy=f"sign it with --version, or {remedy}")
    if precedence(version) < precedence(least):
        raise TrustError(f"the bundle is version {version}, older than {least}", where=where, remedy=remedy)


def _check_provenance(bundle: Path, signed: Statement) -> None:
    """The build's own file may be gone, but must not say something else than what was signed."""
    where = str(bundle / PROVENANCE)
    data = read_detached(bundle / PROVENANCE)
    if data is not None and Statement.parse(data, where).built != signed.built:
        raise TrustError(
            "says something else than the statement that was signed",
            where=where,
            remedy=f"delete it: {SIGNATURE} holds what was signed; or copy the bundle again",
        )
