"""`qpack-runtime serve oci://...`: what isn't in the store is pulled first, and what is needs no network."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oci_registry import Registry, Road, running_registry
from qpack_delivery.oci.push import Pushed, push
from qpack_delivery.oci.reference import Reference
from qpack_schemas.bundle import open_bundle
from server_process import ServerProcess
from signatures import make_keys

SHORT = {"prompt": "And the LORD said", "seed": 3, "max_tokens": 3}
# The pull waits until the test closes the server's stdin.
HELD_PULL = """
import sys, qpack_delivery.oci.store as store
def held(*arguments, pull=store.pull, **options):
    sys.stdin.read()
    return pull(*arguments, **options)
store.pull = held
"""
# What a plain directory must not need.
NO_DELIVERY = """
import sys
sys.modules["qpack_delivery"] = sys.modules["urllib3"] = None
"""
NOBODY = "localhost:1"  # where no registry is


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3")


@pytest.fixture(scope="module")
def pushed(registry: Registry, bundle: Path) -> Pushed:
    return push(bundle, Reference.parse(f"{registry.address}/team/scripture:1"))


def test_a_bundle_is_pulled_and_served_under_its_repositorys_name(registry: Registry, pushed: Pushed, tmp_path: Path):
    reference = f"oci://{registry.address}/team/scripture:1"
    with ServerProcess(reference, "--bundle-store", str(tmp_path), patch=HELD_PULL, hears=True) as server:
        while server.get("/startupz")[1]["phase"] != "pull":
            pass
        assert server.get("/livez")[0] == 200
        status, body, _ = server.get("/readyz")
        assert (status, body["ready"], body["phase"]) == (503, False, "pull")
        assert server.get("/v1/completions", SHORT)[0] == 503
        assert server.process.stdin is not None
        server.process.stdin.close()
        assert "pull" in server.ready().line("ready")["seconds"]
        assert server.line("pulled")["digest"] == pushed.digest
        assert server.line("pulled")["bytes_moved"] > 100_000
        status, body, _ = server.get("/v1/completions", SHORT)
        assert (status, body["model"], body["usage"]["completion_tokens"]) == (200, "scripture", 3)
        assert not server.complaints()
    (manifest,) = tmp_path.rglob("manifest.json")
    assert open_bundle(manifest.parent).bundle_id == pushed.bundle_id


def test_what_is_named_by_its_digest_and_there_needs_no_network(registry: Registry, pushed: Pushed, tmp_path: Path):
    reference = f"oci://{registry.address}/team/scripture@{pushed.digest}"
    store = ("--bundle-store", str(tmp_path))
    with ServerProcess(reference, *store) as server:
        server.ready()
    (folder,) = tmp_path.iterdir()
    folder.rename(tmp_path / NOBODY.replace(":", "_"))
    with ServerProcess(f"oci://{NOBODY}/team/scripture@{pushed.digest}", *store) as server:
        assert server.ready().line("pulled")["bytes_moved"] == 0


def test_a_refused_pull_ends_the_process_like_a_failed_boot(registry: Registry, pushed: Pushed, tmp_path: Path):
    with ServerProcess(f"oci://{registry.address}/team/nothing:1", "--bundle-store", str(tmp_path)) as server:
        assert server.wait() == 1
        assert "has no such bundle" in "\n".join(server.plain)
        assert "Traceback" not in server.told()


def test_a_signal_ends_a_pull(registry: Registry, pushed: Pushed, tmp_path: Path):
    """The registry's answer never comes."""
    with (
        Road(registry.address, hold_down=0) as road,
        ServerProcess(f"oci://{road.address}/team/scripture:1", "--bundle-store", str(tmp_path)) as server,
    ):
        road.holds.wait()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert not server.complaints()


def test_an_unsigned_bundle_is_not_pulled_where_a_signature_is_required(
    registry: Registry, pushed: Pushed, tmp_path: Path
):
    flags = ("--require-signature", "--pubkey", str(make_keys(tmp_path).public), "--bundle-store", str(tmp_path / "s"))
    with ServerProcess(f"oci://{registry.address}/team/scripture:1", *flags) as server:
        assert server.wait() == 8
    assert not list((tmp_path / "s").rglob("*.safetensors"))


def test_a_store_that_can_not_be_written_is_named(registry: Registry, pushed: Pushed, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    store = ("--bundle-store", str(tmp_path / "file" / "store"))
    with ServerProcess(f"oci://{registry.address}/team/scripture:1", *store) as server:
        assert server.wait() == 1
        assert "--bundle-store" in "\n".join(server.plain)
        assert "Traceback" not in server.told()


def test_a_directory_needs_nothing_of_registries(bundle: Path):
    with ServerProcess(bundle, patch=NO_DELIVERY) as server:
        assert server.ready().line("ready")["model"] == bundle.name


@pytest.mark.parametrize("flags", [("--plain-http",), ("--bundle-store", "store")])
def test_flags_of_registries_are_refused_for_a_directory(flags: tuple[str, ...], bundle: Path):
    with ServerProcess(bundle, *flags) as server:
        assert server.wait() == 2
