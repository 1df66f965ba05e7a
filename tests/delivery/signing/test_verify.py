"""Who vouches for a bundle: what `qpack verify` shows, and each thing it refuses by its name."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from qpack_delivery.signing.detached import LARGEST, PROVENANCE, SIGNATURE
from qpack_delivery.signing.envelope import Envelope, Signature, pae
from qpack_delivery.signing.keys import PrivateKey
from qpack_delivery.signing.statement import PAYLOAD_TYPE
from qpack_delivery.signing.verify import Trust, check_signature, verify_bundle
from qpack_packager.cli import main
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import InputError, IntegrityError, TrustError, UsageError
from signatures import REFUSALS, REVISION, Keys, Refusal, copy_bundle, make_keys, provenance, sign

CLI = "import sys; from qpack_packager.cli import main; sys.argv[0] = 'qpack'; main()"


def envelope(keys: Keys, payload: bytes, payload_type: str = PAYLOAD_TYPE, keyid: str | None = None) -> bytes:
    key = PrivateKey.read(keys.private, None)
    signature = Signature(key.public.keyid if keyid is None else keyid, key.sign(pae(payload_type, payload)))
    return Envelope(payload_type, payload, (signature,)).encode()


def test_who_when_and_from_what_is_shown(signed: Path, keys: Keys):
    ran = CliRunner().invoke(main, ["verify", str(signed), "--pubkey", str(keys.public), "--format", "json"])
    said = json.loads(ran.stdout)
    assert said == {
        "verified": True,
        "bundle_id": open_bundle(signed).bundle_id,
        "version": "1.4.0",
        "signers": [{"keyid": keys.keyid, "algorithm": "ed25519"}],
        "revision": REVISION,
        "builder": "https://example.com/ci",
        "inputs": [
            {"name": "git+https://example.com/models.git", "digest": f"gitCommit:{REVISION}"},
            {"name": "config.json", "digest": "sha256:" + "ab" * 32},
        ],
    }
    text = CliRunner().invoke(main, ["verify", str(signed), "--pubkey", str(keys.public)]).stdout
    for one in (said["bundle_id"], keys.keyid, "1.4.0", REVISION, said["builder"], "config.json"):
        assert one in text


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: one.__name__)
def test_the_command_refuses(refusal: Callable[[Path, Keys, Path], Refusal], signed: Path, keys: Keys, tmp_path: Path):
    case = refusal(signed, keys, tmp_path)
    command = [sys.executable, "-c", CLI, "verify", str(case.bundle), *case.flags, "--format", "json"]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == case.code, ran.stderr
    assert "Traceback" not in ran.stderr
    assert all(word in ran.stderr for word in case.said), ran.stderr
    assert json.loads(ran.stdout)["error"]["exit_code"] == case.code


@pytest.mark.parametrize("version", ["1.4.0", "1.4", "1.4.0-rc.9", "1.3.99", "0"])
def test_the_version_or_an_older_one_may_be_asked_for(signed: Path, keys: Keys, version: str):
    assert verify_bundle(signed, Trust((keys.public,), version)).version == "1.4.0"


def test_an_unversioned_signature_is_refused_only_where_a_version_is_asked_for(unsigned: Path, keys: Keys):
    sign(unsigned, keys)
    assert verify_bundle(unsigned, Trust((keys.public,))).version is None
    with pytest.raises(TrustError, match="says no version, and at least 0 is wanted"):
        verify_bundle(unsigned, Trust((keys.public,), "0"))


def test_an_altered_payload_and_an_altered_signature_are_told_from_an_unknown_key(signed: Path, keys: Keys):
    document = json.loads((signed / SIGNATURE).read_bytes())
    payload = base64.b64decode(document["payload"]).replace(b"1.4.0", b"9.4.0")
    altered = document | {"payload": base64.b64encode(payload).decode("ascii")}
    (signed / SIGNATURE).write_text(json.dumps(altered), encoding="utf-8")
    with pytest.raises(TrustError, match=f"signature of key {keys.keyid} does not fit what is signed"):
        verify_bundle(signed, Trust((keys.public,), "9"))


Sealed = tuple[Path, str, Trust, bytes]


@pytest.fixture(scope="module")
def sealed(tiny_bundle: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    """A signed bundle, its id, who is trusted, and the bytes of its signature, which a test may overwrite."""
    folder = tmp_path_factory.mktemp("sealed")
    keys = make_keys(folder)
    bundle = sign(copy_bundle(tiny_bundle("tiny-qwen3"), folder / "bundle"), keys, "1.4.0")
    return bundle, open_bundle(bundle).bundle_id, Trust((keys.public,)), (bundle / SIGNATURE).read_bytes()


@given(data=st.data())
def test_no_altered_byte_of_the_envelope_changes_what_is_trusted(data: st.DataObject, sealed: Sealed):
    bundle, bundle_id, trust, whole = sealed
    raw = bytearray(whole)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (bundle / SIGNATURE).write_bytes(raw)
    try:
        verified = check_signature(bundle, bundle_id, trust)
    except TrustError:
        return
    # A keyid, which is a hint, or a key that is left out; never something else that was signed.
    assert (verified.bundle_id, verified.version) == (bundle_id, "1.4.0")


def test_a_keyid_proves_nothing_and_hides_nothing(unsigned: Path, keys: Keys, tmp_path: Path):
    payload = (unsigned / PROVENANCE).read_bytes()
    (unsigned / SIGNATURE).write_bytes(envelope(keys, payload, keyid="somebody else"))
    assert [key.keyid for key in verify_bundle(unsigned, Trust((keys.public,))).signers] == [keys.keyid]
    thief = make_keys(tmp_path, "thief")
    (unsigned / SIGNATURE).write_bytes(envelope(thief, payload, keyid=keys.keyid))
    with pytest.raises(TrustError, match="does not fit"):
        verify_bundle(unsigned, Trust((keys.public,)))


def test_names_of_keys_reach_no_terminal_unescaped(unsigned: Path, keys: Keys, tmp_path: Path):
    thief = make_keys(tmp_path, "thief")
    hostile = "\x1b[2J\u202e" + "x" * 100_000
    (unsigned / SIGNATURE).write_bytes(envelope(thief, (unsigned / PROVENANCE).read_bytes(), keyid=hostile))
    with pytest.raises(TrustError) as caught:
        verify_bundle(unsigned, Trust((keys.public,)))
    assert str(caught.value).isascii()
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_trusted_signature_over_something_else_vouches_for_nothing(unsigned: Path, keys: Keys):
    bundle_id = open_bundle(unsigned).bundle_id
    statement = provenance(bundle_id)
    subject = statement["subject"][0]
    others = [
        (b"hello world", PAYLOAD_TYPE),
        ((unsigned / PROVENANCE).read_bytes(), "text/plain"),
        (statement | {"predicateType": "https://cyclonedx.org/bom"}, PAYLOAD_TYPE),
        (statement | {"subject": [subject, subject | {"name": "other"}]}, PAYLOAD_TYPE),
        (statement | {"subject": [subject | {"annotations": {"version": "new"}}]}, PAYLOAD_TYPE),
        (b'{"predicate": ' + b"[" * 50_000, PAYLOAD_TYPE),
    ]
    for payload, payload_type in others:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode("ascii")
        (unsigned / SIGNATURE).write_bytes(envelope(keys, data, payload_type))
        with pytest.raises(TrustError, match=SIGNATURE):
            verify_bundle(unsigned, Trust((keys.public,)))


@pytest.mark.parametrize("depth", [200, 900, 5_000])
def test_a_deeply_nested_statement_is_refused_or_understood(unsigned: Path, keys: Keys, depth: int):
    statement = provenance(open_bundle(unsigned).bundle_id, deep=0)
    text = json.dumps(statement).replace('"deep": 0', '"deep": ' + "[" * depth + "]" * depth)
    (unsigned / SIGNATURE).write_bytes(envelope(keys, text.encode("ascii")))
    (unsigned / PROVENANCE).write_text(text, encoding="utf-8")
    try:
        verify_bundle(unsigned, Trust((keys.public,)))
    except TrustError as error:
        assert "deeply" in error.message  # noqa: PT017


def test_provenance_that_says_something_else_than_was_signed_is_refused(signed: Path, keys: Keys):
    file, trust = signed / PROVENANCE, Trust((keys.public,))
    statement = json.loads(file.read_bytes())
    file.write_text(json.dumps(statement, indent=2), encoding="utf-8")  # the same, in another spelling
    verify_bundle(signed, trust)
    build = statement["predicate"]["buildDefinition"]
    for changed in (
        statement["predicate"] | {"buildDefinition": build | {"buildType": "https://example.com/other"}},
        statement["predicate"] | {"buildDefinition": build | {"externalParameters": {"lm_head": True}}},
    ):
        file.write_text(json.dumps(statement | {"predicate": changed}), encoding="utf-8")
        with pytest.raises(TrustError, match="says something else than the statement that was signed"):
            verify_bundle(signed, trust)
    file.write_bytes(b"{}")
    with pytest.raises(TrustError, match=PROVENANCE):
        verify_bundle(signed, trust)
    file.unlink()
    verify_bundle(signed, trust)


def test_other_signatures_and_qualities_lie_beside_it(signed: Path, keys: Keys):
    for name in ("signature.sigstore.json", "quality.json", "signature.dsse.json.partial"):
        (signed / name).write_bytes(b"{}")
    verify_bundle(signed, Trust((keys.public,)))


def test_a_signature_file_that_is_a_link_or_endless_is_refused(signed: Path, keys: Keys, tmp_path: Path):
    trust, bundle_id, file = Trust((keys.public,)), open_bundle(signed).bundle_id, signed / SIGNATURE
    moved = file.rename(tmp_path / SIGNATURE)
    file.symlink_to(moved)
    with pytest.raises(TrustError, match="symbolic link"):
        check_signature(signed, bundle_id, trust)
    with pytest.raises(IntegrityError, match="symbolic link"):
        verify_bundle(signed, trust)
    file.unlink()
    file.write_bytes(moved.read_bytes() + b" " * LARGEST)
    with pytest.raises(TrustError, match="larger"):
        verify_bundle(signed, trust)
    file.unlink()
    file.mkdir()
    with pytest.raises(TrustError, match="not a regular file"):
        check_signature(signed, bundle_id, trust)


def test_trust_needs_keys_that_are_public_ones(keys: Keys, tmp_path: Path):
    with pytest.raises(UsageError, match="no key is trusted"):
        Trust(())
    with pytest.raises(UsageError, match="--min-version 'v1' is no version"):
        Trust((keys.public,), "v1")
    two = tmp_path / "two.pub"
    two.write_bytes(keys.public.read_bytes() + make_keys(tmp_path, "other").public.read_bytes())
    cut = tmp_path / "cut.pub"
    cut.write_bytes(keys.public.read_bytes().replace(b"MC", b"MD", 1))
    for path in (keys.private, two, cut):
        with pytest.raises(InputError, match="public key"):
            Trust((path,))
    with pytest.raises(FileNotFoundError):
        Trust((tmp_path / "absent",))
    assert len(Trust((keys.public, keys.public)).keys) == 1
