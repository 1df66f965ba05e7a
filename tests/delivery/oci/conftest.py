"""A registry for each module, and bundles to move."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oci_registry import Registry, running_registry
from qpack_delivery.oci.reference import Reference

from .bundles_made import bundle_with, bytes_of


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that asks for USER and PASSWORD."""
    with running_registry(tmp_path_factory.mktemp("guarded"), password=True) as running:
        yield running


@pytest.fixture(autouse=True)
def nobody_is_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of docker's config.json, which has none yet."""
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    docker = tmp_path / "docker"
    docker.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(docker))
    return docker


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight files of 128 KiB beside those of a real bundle. Only for reading."""
    files = {f"LICENSES/{number:02}": bytes_of(number, 1 << 17) for number in range(8)}
    return bundle_with(tiny_bundle("tiny-qwen3"), tmp_path_factory.mktemp("bundle") / "bundle", files)


@pytest.fixture
def place(registry: Registry, request: pytest.FixtureRequest) -> Reference:
    """A repository for each test."""
    name = "".join(letter for letter in request.node.name.lower() if letter.isalnum())
    return Reference.parse(f"{registry.address}/tests/{name}:1")
