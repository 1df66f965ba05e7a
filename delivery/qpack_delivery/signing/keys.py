"""Keys in PEM files: Ed25519, and ECDSA on P-256 with SHA-256 or P-384 with SHA-384."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    SECP384R1,
    EllipticCurve,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from qpack_schemas.errors import InputError, UsageError

PASSPHRASE = "QPACK_KEY_PASSPHRASE"  # the environment variable; a flag would show it to every user of the host
_LARGEST = 1 << 16  # bytes of a PEM file
_KINDS = "Ed25519, or ECDSA on P-256 or P-384"


@dataclass(frozen=True)
class PublicKey:
    key: Ed25519PublicKey | EllipticCurvePublicKey

    @classmethod
    def read(cls, path: Path) -> "PublicKey":
        """Raises InputError if the file holds anything but one public key that qpack can use."""
        data = _read(path)
        remedy = "give a file that holds one public key; `openssl pkey -in KEY -pubout` makes it of the private one"
        if data.count(b"-----BEGIN ") != 1 or b"-----BEGIN PUBLIC KEY-----" not in data:
            raise InputError("is no public key in PEM", where=str(path), remedy=remedy)
        try:
            return cls(_supported(load_pem_public_key(data), path))
        except (ValueError, UnsupportedAlgorithm):
            raise InputError("is a damaged public key, or one of an unknown kind", where=str(path)) from None

    @property
    def keyid(self) -> str:
        """sha256 of the key's SubjectPublicKeyInfo in DER: `openssl pkey -pubin -in PUB -outform DER | sha256sum`."""
        return hashlib.sha256(self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()

    @property
    def algorithm(self) -> str:
        return "ed25519" if isinstance(self.key, Ed25519PublicKey) else f"ecdsa-{self.key.curve.name}"

    def verifies(self, sig: bytes, data: bytes) -> bool:
        try:
            if isinstance(self.key, Ed25519PublicKey):
                self.key.verify(sig, data)
            else:
                self.key.verify(sig, data, _ecdsa(self.key.curve))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class PrivateKey:
    key: Ed25519PrivateKey | EllipticCurvePrivateKey

    @classmethod
    def read(cls, path: Path, passphrase: bytes | None) -> "PrivateKey":
        """`passphrase` is for a file that is encrypted. Raises InputError, or UsageError where a passphrase lacks."""
        data = _read(path)
        encrypted = False
        try:
            try:
                key = load_pem_private_key(data, None)
            except TypeError:
                encrypted = True
                if not passphrase:
                    raise UsageError("is encrypted", where=str(path), remedy=f"set {PASSPHRASE}") from None
                key = load_pem_private_key(data, passphrase)
        except (ValueError, UnsupportedAlgorithm):
            if encrypted:
                raise InputError(f"is encrypted, and {PASSPHRASE} does not open it", where=str(path)) from None
            remedy = "`openssl genpkey -algorithm ed25519 -out KEY` makes one"
            raise InputError("is no private key in PEM", where=str(path), remedy=remedy) from None
        if not isinstance(key, Ed25519PrivateKey | EllipticCurvePrivateKey):
            raise InputError(f"is a key of another kind than {_KINDS}", where=str(path))
        _supported(key.public_key(), path)
        return cls(key)

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.key.public_key())

    def sign(self, data: bytes) -> bytes:
        if isinstance(self.key, Ed25519PrivateKey):
            return self.key.sign(data)
        return self.key.sign(data, _ecdsa(self.key.curve))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise InputError(f"has more than {_LARGEST} bytes, so it is no key", where=str(path))
    return data


def _supported(key: object, path: Path) -> Ed25519PublicKey | EllipticCurvePublicKey:
    curves = (SECP256R1, SECP384R1)
    if isinstance(key, Ed25519PublicKey):
        return key
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, curves):
        return key
    raise InputError(f"is a key of another kind than {_KINDS}", where=str(path))


def _ecdsa(curve: EllipticCurve) -> ECDSA:
    return ECDSA(SHA256() if isinstance(curve, SECP256R1) else SHA384())
