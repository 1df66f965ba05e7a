"""Envelopes against the protocol's own example, and against damage."""

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given
from hypothesis import strategies as st

from qpack_delivery.signing.envelope import Envelope, Signature, pae
from qpack_delivery.signing.keys import PublicKey
from qpack_schemas.errors import InputError

# protocol.md of github.com/secure-systems-lab/dsse, "Test Vectors"; the signature is r and s, 32 bytes each.
X = 46950820868899156662930047687818585632848591499744589407958293238635476079160
Y = 5640078356564379163099075877009565129882514886557779369047442380624545832820
PUBLISHED = b"""{"payload": "aGVsbG8gd29ybGQ=",
 "payloadType": "http://example.com/HelloWorld",
 "signatures": [{"sig": "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="}]}"""
ENVELOPES = st.builds(
    Envelope,
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.binary(max_size=50),
    st.lists(st.builds(Signature, st.text("0123456789abcdef", max_size=64), st.binary(max_size=64)), max_size=3).map(
        lambda signatures: tuple(sorted(signatures))
    ),
)


def test_the_published_example_is_encoded_and_verified():
    assert (
        pae("http://example.com/HelloWorld", b"hello world")
        == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    envelope = Envelope.parse(PUBLISHED, "example")
    raw = envelope.signatures[0].sig
    assert envelope.signatures[0].keyid == ""
    key = PublicKey(ec.EllipticCurvePublicNumbers(X, Y, ec.SECP256R1()).public_key())
    sig = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    assert key.verifies(sig, envelope.signed)
    assert not key.verifies(sig, envelope.signed + b" ")
    assert not key.verifies(raw, envelope.signed)


@given(ENVELOPES)
def test_what_is_written_is_read(envelope: Envelope):
    data = envelope.encode()
    assert Envelope.parse(data, "here") == envelope
    document = json.loads(data)
    assert base64.b64decode(document["payload"]) == envelope.payload
    document["payload"] = base64.urlsafe_b64encode(envelope.payload).decode("ascii")  # verifiers must take either
    assert Envelope.parse(json.dumps(document).encode("ascii"), "here") == envelope


@given(ENVELOPES, st.data())
def test_a_cut_envelope_is_refused(envelope: Envelope, data: st.DataObject):
    whole = envelope.encode().rstrip(b"\n")
    with pytest.raises(InputError):
        Envelope.parse(whole[: data.draw(st.integers(0, len(whole) - 1))], "here")


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe{}",
        b'{"payload": "", "payload": "", "payloadType": "", "signatures": []}',
        b'{"payloadType": "", "signatures": []}',
        b'{"payload": 1, "payloadType": "", "signatures": []}',
        b'{"payload": "a", "payloadType": "", "signatures": []}',
        b'{"payload": "a===", "payloadType": "", "signatures": []}',
        b'{"payload": "\\u00e9", "payloadType": "", "signatures": []}',
        b'{"payload": "", "payloadType": null, "signatures": []}',
        b'{"payload": "", "payloadType": ""}',
        b'{"payload": "", "payloadType": "", "signatures": {}}',
        b'{"payload": "", "payloadType": "", "signatures": [1]}',
        b'{"payload": "", "payloadType": "", "signatures": [{}]}',
        b'{"payload": "", "payloadType": "", "signatures": [{"sig": "", "keyid": 1}]}',
        b'{"payload": "", "payloadType": "", "signatures": [{"sig": "*"}]}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_envelope_is_refused(damage: bytes):
    with pytest.raises(InputError, match="here"):
        Envelope.parse(damage, "here")
