"""The same keys and bundles with other tools: securesystemslib, in-toto's attestation library, and OpenSSF's
model-signing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from google.protobuf.json_format import Parse
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, Key, SSlibKey  # pyright: ignore[reportPrivateImportUsage]

from qpack_delivery.signing.detached import PROVENANCE, SIGNATURE
from qpack_delivery.signing.verify import Trust, verify_bundle
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import IntegrityError, TrustError
from signatures import KINDS, Keys, altered_file, make_keys, sign

OMS = "signature.oms.sig"


def theirs(keys: Keys) -> Key:
    return SSlibKey.from_crypto(load_pem_public_key(keys.public.read_bytes()), keyid=keys.keyid)


@pytest.mark.parametrize("kind", KINDS)
def test_securesystemslib_verifies_what_we_sign(unsigned: Path, tmp_path: Path, kind: str):
    keys, other = make_keys(tmp_path, kind=kind), make_keys(tmp_path, "other", kind)
    sign(unsigned, keys, "1.4.0")
    envelope = Envelope.from_dict(json.loads((unsigned / SIGNATURE).read_bytes()))
    assert envelope.verify([theirs(keys)], 1).keys() == {keys.keyid}
    assert json.loads(envelope.payload)["subject"][0]["digest"]["sha256"] == open_bundle(unsigned).bundle_id
    with pytest.raises(VerificationError):
        envelope.verify([theirs(other)], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_we_verify_what_securesystemslib_signs(unsigned: Path, tmp_path: Path, kind: str):
    keys, other = make_keys(tmp_path, kind=kind), make_keys(tmp_path, "other", kind)
    envelope = Envelope((unsigned / PROVENANCE).read_bytes(), "application/vnd.in-toto+json", {})
    envelope.sign(CryptoSigner.from_priv_key_uri(f"file2:{keys.private}", theirs(keys)))
    (unsigned / SIGNATURE).write_text(json.dumps(envelope.to_dict()), encoding="utf-8")
    assert [key.keyid for key in verify_bundle(unsigned, Trust((keys.public,))).signers] == [keys.keyid]
    with pytest.raises(TrustError):
        verify_bundle(unsigned, Trust((other.public,)))


def test_the_payload_is_a_statement_as_in_toto_defines_it(signed: Path):
    payload = Envelope.from_dict(json.loads((signed / SIGNATURE).read_bytes())).payload
    message = statement_pb2.Statement()  # pyright: ignore[reportAttributeAccessIssue]
    statement = Statement.copy_from_pb(Parse(payload, message))  # refuses a field that is not defined
    statement.validate()
    assert statement.pb.subject[0].annotations["version"] == "1.4.0"


def model_signing(verb: str, bundle: Path, *flags: str | Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which may open files without naming an encoding."""
    command = [sys.executable, "-m", "model_signing", verb, "key", str(bundle), "--signature", str(bundle / OMS)]
    command += ["--ignore-paths", str(bundle / SIGNATURE)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [*command, *map(str, flags)], env=variables, capture_output=True, encoding="utf-8", check=False
    )


def test_model_signing_signs_the_same_bundle_with_the_same_key(unsigned: Path, tmp_path: Path):
    keys, trust = (keys := make_keys(tmp_path, kind="p256")), Trust((keys.public,))
    bundle_id = open_bundle(unsigned).bundle_id
    sign(unsigned, keys, "1.4.0")
    ran = model_signing("sign", unsigned, "--private_key", keys.private)
    assert ran.returncode == 0, ran.stderr
    ran = model_signing("verify", unsigned, "--public_key", keys.public)
    assert ran.returncode == 0, ran.stderr
    assert verify_bundle(unsigned, trust).bundle_id == bundle_id
    other = make_keys(tmp_path, "other", "p256")
    assert model_signing("verify", unsigned, "--public_key", other.public).returncode != 0
    sign(unsigned, other, "1.4.0")  # one more of ours disturbs theirs as little
    assert model_signing("verify", unsigned, "--public_key", keys.public).returncode == 0
    altered_file(unsigned, keys, tmp_path)
    ran = model_signing("verify", unsigned, "--public_key", keys.public)
    assert ran.returncode != 0
    assert "mismatch" in (ran.stdout + ran.stderr).lower()
    with pytest.raises(IntegrityError):
        verify_bundle(unsigned, trust)
