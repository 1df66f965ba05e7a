"""What signing writes, what it keeps, and what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa, x25519

from qpack_delivery.signing.detached import LARGEST, PROVENANCE, SIGNATURE
from qpack_delivery.signing.envelope import Envelope
from qpack_delivery.signing.keys import PrivateKey
from qpack_delivery.signing.sign import sign_bundle
from qpack_delivery.signing.verify import Trust, verify_bundle
from qpack_packager.cli import main
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import InputError, IntegrityError, UsageError
from signatures import KINDS, PEM, PKCS8, PLAIN, Keys, altered_file, make_keys, provenance, sign

CLI = "import sys; from qpack_packager.cli import main; sys.argv[0] = 'qpack'; main()"


def qpack(*arguments: str | Path, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, [str(argument) for argument in arguments])


def refused(result: Result, code: int) -> str:
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    return result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_key_signs_what_it_verifies(unsigned: Path, tmp_path: Path, kind: str):
    keys = make_keys(tmp_path, kind=kind)
    said = json.loads(qpack("sign", unsigned, "--key", keys.private, "--version", "2.0", "--format", "json").stdout)
    assert (said["keyid"], said["keyids"], said["version"]) == (keys.keyid, [keys.keyid], "2.0")
    verified = verify_bundle(unsigned, Trust((keys.public,)))
    assert (verified.bundle_id, verified.version) == (said["bundle_id"], "2.0")
    assert said["bundle_id"] == open_bundle(unsigned).bundle_id  # the signature is no part of it


def test_an_unversioned_signature_is_over_the_very_bytes_of_the_build(unsigned: Path, keys: Keys):
    sign(unsigned, keys)
    envelope = Envelope.parse((unsigned / SIGNATURE).read_bytes(), SIGNATURE)
    assert envelope.payload == (unsigned / PROVENANCE).read_bytes()


def test_a_second_key_adds_its_signature_and_the_first_may_go(signed: Path, keys: Keys, tmp_path: Path):
    new = make_keys(tmp_path, "new", "p256")
    sign(signed, new, "1.4.0")
    for trusted in ([keys], [new], [new, keys]):
        verified = verify_bundle(signed, Trust(tuple(one.public for one in trusted)))
        assert [key.keyid for key in verified.signers] == [one.keyid for one in trusted]


def test_signing_again_replaces_the_own_signature_only(signed: Path, keys: Keys, tmp_path: Path):
    other = make_keys(tmp_path, "other", "p384")
    sign(signed, other, "1.4.0")
    before = json.loads((signed / SIGNATURE).read_bytes())
    sign(signed, other, "1.4.0")
    after = json.loads((signed / SIGNATURE).read_bytes())
    unchanged = [one for one in before["signatures"] if one in after["signatures"]]
    assert [one["keyid"] for one in unchanged] == [keys.keyid]
    assert {one["keyid"] for one in after["signatures"]} == {keys.keyid, other.keyid}


def test_ed25519_gives_the_same_bytes_again(signed: Path, keys: Keys):
    before = (signed / SIGNATURE).read_bytes()
    assert (sign(signed, keys, "1.4.0") / SIGNATURE).read_bytes() == before


@pytest.mark.parametrize("version", [None, "1.5.0"])
def test_signatures_over_another_version_are_never_lost(signed: Path, keys: Keys, version: str | None):
    before = (signed / SIGNATURE).read_bytes()
    with pytest.raises(UsageError, match=r"signs version 1\.4\.0, and you ask for") as caught:
        sign(signed, keys, version)
    assert SIGNATURE in caught.value.remedy
    assert (signed / SIGNATURE).read_bytes() == before


def test_a_signature_of_another_bundle_or_no_signature_is_not_added_to(signed: Path, keys: Keys):
    file = signed / SIGNATURE
    statement = json.loads((signed / PROVENANCE).read_bytes())
    (signed / PROVENANCE).write_text(json.dumps(statement | {"predicate": {}}), encoding="utf-8")
    with pytest.raises(UsageError, match=f"signs something else than {PROVENANCE}"):
        sign(signed, keys, "1.4.0")
    for damage in (b"", b"{}", b'{"payload": "", "payloadType": "", "signatures": []}'):
        file.write_bytes(damage)
        with pytest.raises(UsageError, match="can't be added to"):
            sign(signed, keys, "1.4.0")
        assert file.read_bytes() == damage


def test_a_bundle_without_a_statement_about_it_is_not_signed(unsigned: Path, keys: Keys):
    file = unsigned / PROVENANCE
    statement = provenance("cd" * 32)
    file.write_text(json.dumps(statement), encoding="utf-8")
    assert f"about another bundle, {'cd' * 32}" in refused(qpack("sign", unsigned, "--key", keys.private), 1)
    subject = statement["subject"][0]
    for wrong in (
        statement | {"_type": "https://in-toto.io/Statement/v0.1"},
        statement | {"predicateType": "https://spdx.dev/Document"},
        statement | {"subject": []},
        statement | {"subject": [subject, subject]},
        statement | {"subject": ["manifest.json"]},
        statement | {"subject": [subject | {"digest": {"sha512": "ab"}}]},
        statement | {"subject": [subject | {"digest": {"sha256": "AB" * 32}}]},
        statement | {"subject": [subject | {"annotations": []}]},
        statement | {"subject": [subject | {"annotations": {"version": 1}}]},
        [statement],
    ):
        file.write_text(json.dumps(wrong), encoding="utf-8")
        assert PROVENANCE in refused(qpack("sign", unsigned, "--key", keys.private), 1)
    file.write_bytes(b"{" + b" " * LARGEST)
    assert "larger than" in refused(qpack("sign", unsigned, "--key", keys.private), 1)
    file.unlink()
    assert "is missing" in refused(qpack("sign", unsigned, "--key", keys.private), 1)
    assert not (unsigned / SIGNATURE).exists()


def test_an_altered_bundle_is_not_signed(unsigned: Path, keys: Keys):
    altered_file(unsigned, keys, unsigned)
    with pytest.raises(IntegrityError):
        sign(unsigned, keys)
    assert not (unsigned / SIGNATURE).exists()


def test_an_encrypted_key_needs_its_passphrase(unsigned: Path, tmp_path: Path):
    file = tmp_path / "locked.pem"
    passphrase = "schlüssel"
    how = serialization.BestAvailableEncryption(passphrase.encode("utf-8"))
    file.write_bytes(KINDS["p256"]().private_bytes(PEM, PKCS8, how))
    arguments = ("sign", unsigned, "--key", file)
    assert "set QPACK_KEY_PASSPHRASE" in refused(qpack(*arguments), 2)
    assert "does not open it" in refused(qpack(*arguments, QPACK_KEY_PASSPHRASE="wrong"), 1)
    variables = {**os.environb, b"QPACK_KEY_PASSPHRASE": passphrase.encode("utf-8")}  # bytes, whatever the locale
    command = [sys.executable, "-c", CLI, *map(str, arguments)]
    ran = subprocess.run(command, env=variables, capture_output=True, encoding="utf-8", check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_what_is_no_key_of_these_kinds_is_refused_and_never_shown(unsigned: Path, tmp_path: Path):
    file = tmp_path / "key"
    others = [
        rsa.generate_private_key(65537, 2048),
        x25519.X25519PrivateKey.generate(),
        ec.generate_private_key(ec.SECP521R1()),
    ]
    public = make_keys(tmp_path).public.read_bytes()
    secret = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
    for data in (
        *(one.private_bytes(PEM, PKCS8, PLAIN) for one in others),
        public,
        secret,
        b"",
        b"secret",
        b"-" * (1 << 17),
    ):
        file.write_bytes(data)
        message = refused(qpack("sign", unsigned, "--key", file), 1)
        assert str(file) in message
        assert "secret" not in message
        assert "c2VjcmV0" not in message
    assert not (unsigned / SIGNATURE).exists()


def test_a_killed_signing_leaves_a_whole_bundle_and_what_was_there(signed: Path, keys: Keys, tmp_path: Path):
    before = (signed / SIGNATURE).read_bytes()
    new = make_keys(tmp_path, "new")
    patch = "import os; os.replace = os.rename = lambda *_: os.kill(os.getpid(), 9)\n"
    patch += "import pathlib; pathlib.Path.replace = lambda *_: os.kill(os.getpid(), 9)\n"
    command = [sys.executable, "-c", patch + CLI, "sign", str(signed), "--key", str(new.private), "--version", "1.4.0"]
    assert subprocess.run(command, check=False).returncode == -9
    assert len(list(signed.glob("signature.*"))) == 2
    assert (signed / SIGNATURE).read_bytes() == before
    verify_bundle(signed, Trust((keys.public,)))
    sign(signed, new, "1.4.0")
    assert [path.name for path in signed.glob("*signature*")] == [SIGNATURE]
    verify_bundle(signed, Trust((new.public,)))


def test_a_full_disk_leaves_what_was_there(signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = (signed / SIGNATURE).read_bytes()
    new = make_keys(tmp_path, "new")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refused(qpack("sign", signed, "--key", new.private, "--version", "1.4.0"), 1)
    assert [path.name for path in signed.glob("*signature*")] == [SIGNATURE]
    assert (signed / SIGNATURE).read_bytes() == before


def test_two_at_once_both_have_their_signature(signed: Path, tmp_path: Path):
    pairs = [make_keys(tmp_path, f"k{number}") for number in range(4)]
    command = [sys.executable, "-c", CLI, "sign", str(signed), "--version", "1.4.0", "--key"]
    running = [subprocess.Popen([*command, str(one.private)], stdout=subprocess.DEVNULL) for one in pairs]
    assert [one.wait() for one in running] == [0] * len(pairs)
    assert len(verify_bundle(signed, Trust(tuple(one.public for one in pairs))).signers) == len(pairs)


@pytest.mark.parametrize("name", [SIGNATURE, PROVENANCE])
def test_a_link_is_never_followed(unsigned: Path, keys: Keys, tmp_path: Path, name: str):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes((unsigned / PROVENANCE).read_bytes())
    (unsigned / name).unlink(missing_ok=True)
    (unsigned / name).symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    with pytest.raises(IntegrityError, match="symbolic link"):
        sign_bundle(unsigned, PrivateKey.read(keys.private, None))
    assert elsewhere.read_bytes() == before


def test_a_version_that_is_none_is_a_usage_error(unsigned: Path, keys: Keys):
    for version in ("v1.4.0", "latest", ""):
        assert "1.4.0-rc.1" in refused(qpack("sign", unsigned, "--key", keys.private, "--version", version), 2)
    with pytest.raises(InputError):
        PrivateKey.read(keys.public, None)
