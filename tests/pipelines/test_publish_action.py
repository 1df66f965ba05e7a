"""The action that publishes, with a real registry: signed, held against the hosts' key, pushed, no secret left."""

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from oci_registry import PASSWORD, USER, Registry, running_registry
from qpack_packager.cli import main
from qpack_schemas.bundle import open_bundle
from signatures import make_keys
from workflow_steps import Host, run_action


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """It asks for USER and PASSWORD."""
    folder = tmp_path / "registry"
    folder.mkdir()
    with running_registry(folder, password=True) as running:
        yield running


@pytest.fixture
def built(host: Host, tiny_bundle: Callable[[str], Path]) -> Path:
    return shutil.copytree(tiny_bundle("tiny-qwen3"), host.workspace / "bundle")


def inputs(host: Host, registry: Registry) -> dict[str, str]:
    keys = make_keys(host.folder)
    shutil.copy(keys.public, host.workspace / "release.pub")
    return {
        "reference": f"{registry.address}/models/tiny:1.4.0",
        "version": "1.4.0",
        "key": keys.private.read_text(encoding="ascii"),
        "public-key": "release.pub",
        "username": USER,
        "password": PASSWORD,
    }


def test_a_bundle_is_signed_and_pushed_a_host_can_pull_it_and_no_secret_is_left(
    host: Host, registry: Registry, built: Path, monkeypatch: pytest.MonkeyPatch
):
    given = inputs(host, registry)
    ran = run_action(host, "publish", given)
    assert not ran.failed, ran.log
    for secret in (given["key"].splitlines()[1], PASSWORD):
        assert secret not in ran.log + ran.summary
    assert {path.name for path in host.temp.iterdir()} == {"qpack-publish", "github_output", "github_step_summary"}
    reference = f"{registry.address}/models/tiny@{ran.outputs['digest']}"
    assert ran.outputs["reference"] == reference
    assert f"`{reference}`" in ran.summary

    docker = host.folder / "docker"
    docker.mkdir()
    pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode("ascii")
    login = {"auths": {registry.address: {"auth": pair}}}
    (docker / "config.json").write_text(json.dumps(login), encoding="utf-8")
    monkeypatch.setenv("DOCKER_CONFIG", str(docker))
    pull = ["pull", reference, "-o", str(host.folder / "pulled"), "--pubkey", str(host.workspace / "release.pub")]
    pulled = CliRunner().invoke(main, [*pull, "--min-version", "1.4.0"])
    assert pulled.exit_code == 0, pulled.output
    assert open_bundle(host.folder / "pulled").bundle_id == open_bundle(built).bundle_id


def test_what_the_hosts_key_does_not_vouch_for_is_not_pushed(host: Host, registry: Registry, built: Path):
    given = inputs(host, registry)
    other = make_keys(host.folder, "other")
    ran = run_action(host, "publish", given | {"key": other.private.read_text(encoding="ascii")})
    assert ran.failed
    assert other.keyid in ran.log
    assert registry.requests("PUT", "/manifests/") == []
    assert ran.outputs == {"digest": "", "reference": ""}


def test_a_wrong_password_fails(host: Host, registry: Registry, built: Path):
    ran = run_action(host, "publish", inputs(host, registry) | {"password": "guessed"})
    assert ran.failed
    assert registry.requests("PUT", "/manifests/") == []
    assert "guessed" not in ran.log
