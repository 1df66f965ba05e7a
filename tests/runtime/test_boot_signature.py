"""`--require-signature`: what is unsigned, altered, exchanged or out of date doesn't boot; what is signed does."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qpack_runtime.cli import main
from server_process import ServerProcess
from signatures import REFUSALS, Keys, Refusal, copy_bundle, make_keys, sign

CLI = "import sys; from qpack_runtime.cli import main; sys.argv[0] = 'qpack-runtime'; main()"
LACKING = """
import importlib.abc, sys
class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cryptography":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Lacking())
"""
ASKED = ("--prompt", "And the", "--max-tokens", "2", "--format", "json")
Attack = Callable[[Path, Keys, Path], Refusal]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return make_keys(tmp_path)


@pytest.fixture
def signed(tiny_bundle: Callable[[str], Path], tmp_path: Path, keys: Keys) -> Path:
    return sign(copy_bundle(tiny_bundle("tiny-qwen3"), tmp_path / "bundle"), keys, "1.4.0")


def generate(bundle: Path, *flags: str | Path) -> Result:
    return CliRunner().invoke(main, ["generate", str(bundle), *ASKED, *map(str, flags)])


def child(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", before + CLI, *arguments], capture_output=True, encoding="utf-8", check=False
    )


def test_a_signed_bundle_boots_and_says_by_whom(signed: Path, keys: Keys):
    ran = generate(signed, "--require-signature", "--pubkey", keys.public, "--min-version", "1.4")
    assert ran.exit_code == 0, ran.stderr
    assert json.loads(ran.stdout)["notes"] == [f"signed as version 1.4.0 by {keys.keyid}"]


def test_one_of_several_keys_is_enough(signed: Path, keys: Keys, tmp_path: Path):
    other = make_keys(tmp_path, "other", "p384")
    ran = generate(signed, "--require-signature", "--pubkey", other.public, "--pubkey", keys.public)
    assert ran.exit_code == 0, ran.stderr


@pytest.mark.parametrize("attack", REFUSALS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("command", ["generate", "serve"])
def test_what_nobody_vouches_for_does_not_boot(command: str, attack: Attack, signed: Path, keys: Keys, tmp_path: Path):
    case = attack(signed, keys, tmp_path)
    flags = ("--prompt", "a") if command == "generate" else ("--port", "0")
    ran = child(command, str(case.bundle), *flags, "--require-signature", *case.flags)
    assert ran.returncode == case.code, ran.stderr
    assert "Traceback" not in ran.stderr
    assert '"event": "ready"' not in ran.stderr
    assert ran.stdout == ""
    assert all(word in ran.stderr for word in case.said), ran.stderr


def test_a_server_of_a_signed_bundle_says_by_whom(signed: Path, keys: Keys):
    with ServerProcess(signed, "--require-signature", "--pubkey", str(keys.public), "--min-version", "1.4.0") as server:
        server.ready()
        assert server.line("ready")["notes"] == [f"signed as version 1.4.0 by {keys.keyid}"]


def test_flags_that_would_check_nothing_are_a_usage_error(signed: Path, keys: Keys):
    (signed / "weights").rename(signed / "gone")  # before the bundle is looked at
    key = ("--pubkey", str(keys.public))
    for flags, word in (
        (("--require-signature",), "add --pubkey"),
        (("--require-signature", "--min-version", "1.0"), "add --pubkey"),
        (key, "add --require-signature"),
        (("--min-version", "1.0"), "add --require-signature"),
        (("--require-signature", *key, "--verify", "quick"), "leave --verify quick out"),
        (("--require-signature", *key, "--min-version", "latest"), "1.4.0-rc.1"),
    ):
        ran = generate(signed, *flags)
        assert ran.exit_code == 2, (flags, ran.stderr)
        assert word in ran.stderr
    assert generate(signed, "--require-signature", "--pubkey", keys.private).exit_code == 1
    assert generate(signed, "--require-signature", "--pubkey", signed / "none").exit_code == 1


@pytest.mark.parametrize("command", ["generate", "serve"])
def test_cryptography_is_needed_for_signatures_only(command: str, signed: Path, keys: Keys):
    if command == "generate":
        ran = child(command, str(signed), *ASKED, before=LACKING)
        assert ran.returncode == 0, ran.stderr
    flags = ASKED if command == "generate" else ("--port", "0")
    ran = child(command, str(signed), *flags, "--require-signature", "--pubkey", str(keys.public), before=LACKING)
    assert (ran.returncode, "Traceback" in ran.stderr) == (2, False), ran.stderr
    assert "cryptography" in ran.stderr
    assert "qpack-llm[runtime]" in ran.stderr
