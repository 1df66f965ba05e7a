"""Two gigabytes through Debian's docker-registry: pushed, pulled, interrupted, updated."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oci_registry import Registry, Road
from qpack_delivery.oci import connection, download
from qpack_delivery.oci.connection import RegistryError
from qpack_delivery.oci.pull import pull
from qpack_delivery.oci.push import push
from qpack_delivery.oci.reference import Reference
from qpack_schemas.bundle import open_bundle

from .bundles_made import bundle_with, bytes_of

SHARD = 32 << 20  # bytes, as weight files have
SHARDS = 64


@pytest.mark.nightly
def test_two_gigabytes_come_through_broken_connections(
    tiny_bundle: Callable[[str], Path], registry: Registry, tmp_path: Path
):
    files = {f"LICENSES/{number:02}": bytes_of(number, SHARD) for number in range(SHARDS)}
    old = bundle_with(tiny_bundle("tiny-qwen3"), tmp_path / "old", files)
    new = bundle_with(old, tmp_path / "new", {"LICENSES/07": bytes_of(99, SHARD)})
    size = SHARD * SHARDS
    cuts = [size // 5] * 3
    with Road(registry.address, cut_up=cuts, cut_down=cuts) as road:
        place = Reference.parse(f"{road.address}/tests/large:1")
        push(old, place)
        # A file that was cut off begins anew, and a cut stops no other.
        assert size < road.moved["up"] < size + 3 * SHARD + 1_000_000
        pulled = pull(place, tmp_path / "bundle")
        assert road.cuts_left == 0
        assert size < road.moved["down"] < size + 4_000_000
        assert pulled.bytes_moved < size + 4_000_000
    with Road(registry.address) as road:
        place = Reference.parse(f"{road.address}/tests/large:1")
        assert push(new, place).bytes_moved < 0.02 * size
        pulled = pull(place, tmp_path / "bundle")
        assert max(pulled.bytes_moved, road.moved["up"], road.moved["down"]) < 0.02 * size
    assert open_bundle(tmp_path / "bundle").bundle_id == open_bundle(new, digests=False).bundle_id


@pytest.mark.nightly
def test_a_pull_that_fails_late_is_not_begun_again(
    tiny_bundle: Callable[[str], Path], registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(download, "_MOST_FAILURES", 1)
    monkeypatch.setattr(connection, "_RETRIES", 1)
    files = {f"LICENSES/{number:02}": bytes_of(100 + number, SHARD) for number in range(8)}
    bundle = bundle_with(tiny_bundle("tiny-qwen3"), tmp_path / "old", files)
    size = SHARD * len(files)
    push(bundle, Reference.parse(f"{registry.address}/tests/late:1"))
    with (
        Road(registry.address, cut_down=[size * 3 // 4] + [0] * 500) as road,
        pytest.raises(RegistryError, match="fails"),
    ):
        pull(Reference.parse(f"{road.address}/tests/late:1"), tmp_path / "bundle")
    with Road(registry.address) as road:
        pull(Reference.parse(f"{road.address}/tests/late:1"), tmp_path / "bundle")
        assert road.moved["down"] < size // 4 + 4_000_000
