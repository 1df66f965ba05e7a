"""Signed bundles for tests, and what somebody might do to one."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from qpack_delivery.signing.detached import PROVENANCE, SIGNATURE
from qpack_delivery.signing.keys import PrivateKey
from qpack_delivery.signing.sign import sign_bundle
from qpack_schemas.bundle import open_bundle
from qpack_schemas.manifest import seal
from qpack_schemas.strict_json import dump_compact

PKCS8, PEM = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
PUBLIC = serialization.PublicFormat.SubjectPublicKeyInfo
PLAIN = serialization.NoEncryption()
KINDS: dict[str, Callable[[], Any]] = {
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
}
REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Keys:
    """The PEM files of a pair."""

    private: Path
    public: Path

    @property
    def keyid(self) -> str:
        return PrivateKey.read(self.private, None).public.keyid


def make_keys(folder: Path, name: str = "key", kind: str = "ed25519") -> Keys:
    key = KINDS[kind]()
    keys = Keys(folder / f"{name}.pem", folder / f"{name}.pub")
    keys.private.write_bytes(key.private_bytes(PEM, PKCS8, PLAIN))
    keys.public.write_bytes(key.public_key().public_bytes(PEM, PUBLIC))
    return keys


def provenance(bundle_id: str, **predicate: Any) -> dict[str, Any]:
    """A statement as a build writes it."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "manifest.json", "digest": {"sha256": bundle_id}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://example.com/build/v1",
                "externalParameters": {"lm_head": "int8"},
                "resolvedDependencies": [
                    {"uri": "git+https://example.com/models.git", "digest": {"gitCommit": REVISION}},
                    {"name": "config.json", "digest": {"sha256": "ab" * 32}},
                ],
            },
            "runDetails": {"builder": {"id": "https://example.com/ci"}},
            **predicate,
        },
    }


def copy_bundle(bundle: Path, to: Path) -> Path:
    """A copy with a statement of its own and no signature."""
    copy = Path(shutil.copytree(bundle, to))
    for path in copy.glob("signature.*"):
        path.unlink()
    (copy / PROVENANCE).write_bytes(dump_compact(provenance(open_bundle(copy, digests=False).bundle_id)))
    return copy


def sign(bundle: Path, keys: Keys, version: str | None = None) -> Path:
    sign_bundle(bundle, PrivateKey.read(keys.private, None), version)
    return bundle


def reseal(bundle: Path, **changes: Any) -> str:
    """Changes the manifest and makes it sound again, as somebody would who knows the format. Returns the bundle_id."""
    file = bundle / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    file.write_bytes(seal({**manifest, **changes}))
    return open_bundle(bundle, digests=False).bundle_id


@dataclass(frozen=True)
class Refusal:
    """What is done to a bundle, how the command that meets it must end, and what it must say."""

    bundle: Path
    flags: tuple[str, ...]
    code: int
    said: tuple[str, ...]


def altered_file(bundle: Path, keys: Keys, folder: Path) -> Refusal:
    weights = sorted((bundle / "weights").iterdir())[-1]
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    return Refusal(bundle, ("--pubkey", str(keys.public)), 5, (f"weights/{weights.name}", "sha256"))


def altered_manifest(bundle: Path, keys: Keys, folder: Path) -> Refusal:
    """Sealed again, so that only the signature knows better."""
    before = open_bundle(bundle).bundle_id
    listed = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["files"]
    extra = bundle / "LICENSES" / "EXTRA"
    extra.parent.mkdir(exist_ok=True)
    extra.write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    files = sorted([*listed, {"path": "LICENSES/EXTRA", "bytes": 0, "sha256": empty}], key=lambda one: one["path"])
    after = reseal(bundle, files=files)
    return Refusal(bundle, ("--pubkey", str(keys.public)), 8, ("another bundle", before, after))


def swapped_signature(bundle: Path, keys: Keys, folder: Path) -> Refusal:
    """Another bundle's signature, by the same key, with that bundle's provenance."""
    other = copy_bundle(bundle, folder / "other")
    altered_manifest(other, keys, folder)
    (other / PROVENANCE).write_bytes(dump_compact(provenance(foreign := open_bundle(other).bundle_id)))
    sign(other, keys, "1.4.0")
    for name in (SIGNATURE, PROVENANCE):
        shutil.copy(other / name, bundle / name)
    ours = open_bundle(bundle).bundle_id
    return Refusal(bundle, ("--pubkey", str(keys.public)), 8, ("another bundle", foreign, ours))


def wrong_key(bundle: Path, keys: Keys, folder: Path) -> Refusal:
    other = make_keys(folder, "other")
    return Refusal(bundle, ("--pubkey", str(other.public)), 8, ("no trusted key", keys.keyid, other.keyid))


def missing_signature(bundle: Path, keys: Keys, folder: Path) -> Refusal:
    (bundle / SIGNATURE).unlink()
    return Refusal(bundle, ("--pubkey", str(keys.public)), 8, ("is not signed", SIGNATURE))


def replayed_version(bundle: Path, keys: Keys, folder: Path) -> Refusal:
    """Signed, whole, and no longer wanted."""
    flags = ("--pubkey", str(keys.public), "--min-version", "1.10.0")
    return Refusal(bundle, flags, 8, ("1.4.0", "1.10.0", "older"))


# Each is done to a bundle that `keys` have signed as version 1.4.0.
REFUSALS = (altered_file, altered_manifest, swapped_signature, wrong_key, missing_signature, replayed_version)
