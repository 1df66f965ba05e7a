"""DSSE: some bytes, their type, and signatures over both.

The protocol: github.com/secure-systems-lab/dsse, protocol.md and envelope.md, version 1.0.
"""

import base64
import binascii
from dataclasses import dataclass

from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import JsonValue, dump_compact, parse_strict


@dataclass(frozen=True, order=True)
class Signature:
    keyid: str  # a hint that anybody can write; never proves anything
    sig: bytes


@dataclass(frozen=True)
class Envelope:
    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @property
    def signed(self) -> bytes:
        return pae(self.payload_type, self.payload)

    def encode(self) -> bytes:
        """Canonical JSON on one line, signatures in the order of their keys."""
        signatures = [{"keyid": one.keyid, "sig": _base64(one.sig)} for one in sorted(self.signatures)]
        return dump_compact(
            {"payloadType": self.payload_type, "payload": _base64(self.payload), "signatures": signatures}
        )

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Envelope":
        """What `encode`, or another tool, has written. Raises InputError if it is no envelope."""
        document = parse_json(data, where)
        signatures = document.get("signatures")
        if not isinstance(signatures, list) or not all(isinstance(one, dict) for one in signatures):
            raise InputError("has no list of signatures", where=where)
        return cls(
            _text(document, "payloadType", where),
            _bytes(document, "payload", where),
            tuple(Signature(_text(one, "keyid", where, ""), _bytes(one, "sig", where)) for one in signatures),
        )


def pae(payload_type: str, payload: bytes) -> bytes:
    """Pre-authentication encoding: the bytes that are signed."""
    name = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(payload), payload)


def parse_json(data: bytes, where: str) -> dict[str, JsonValue]:
    """A JSON object in UTF-8, read strictly. Raises InputError."""
    try:
        document = parse_strict(data.decode("utf-8"), where)
    except UnicodeDecodeError:
        raise InputError("is not UTF-8", where=where) from None
    if not isinstance(document, dict):
        raise InputError("is not a JSON object", where=where)
    return document


def _text(document: dict[str, JsonValue], key: str, where: str, default: str | None = None) -> str:
    if not isinstance(value := document.get(key, default), str):
        raise InputError(f"has no {key}, or one that is not a string", where=where)
    return value


def _bytes(document: dict[str, JsonValue], key: str, where: str) -> bytes:
    """Standard or URL-safe base64: verifiers must take either."""
    text = _text(document, key, where).replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        raise InputError(f"has a {key} that is not base64", where=where) from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
