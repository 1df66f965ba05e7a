"""Connections that break and processes that are killed: what has been moved is not moved again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oci_registry import Registry, Road
from qpack_delivery.oci import upload
from qpack_delivery.oci.connection import PARALLEL, Connection, RegistryError
from qpack_delivery.oci.download import fetch_blob
from qpack_delivery.oci.modelpack import Layer, digest_of
from qpack_delivery.oci.pull import pull
from qpack_delivery.oci.push import push
from qpack_delivery.oci.reference import Reference
from qpack_delivery.oci.upload import push_blob

from .bundles_made import bytes_of, contents
from .spec_registry import SpecRegistry

QPACK = "import sys; from qpack_packager.cli import main; sys.argv[0] = 'qpack'; main()"
SIZE = 4 << 20
DATA = bytes_of(7, SIZE)
LAYER = Layer("weights/00000.safetensors", SIZE, digest_of(DATA), "application/octet-stream")
AROUND = 100_000  # bytes of requests, answers and small files, and of what lay in buffers when a connection was cut


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch):
    """Between two tries."""
    monkeypatch.setattr(upload.time, "sleep", lambda seconds: None)


def connected(address: str) -> Connection:
    return Connection(Reference.parse(f"{address}/tests/blobs:1"))


def send(connection: Connection, data: bytes = DATA, layer: Layer = LAYER) -> list[int]:
    told: list[int] = []
    push_blob(connection, lambda offset, size: data[offset : offset + size], layer, told.append)
    return told


def test_an_upload_goes_on_where_the_registry_says_it_has_got_to(monkeypatch: pytest.MonkeyPatch):
    """By a registry that keeps what came before the cut, as the specification allows."""
    monkeypatch.setattr(upload, "CHUNK_BYTES", 1 << 20)
    with SpecRegistry() as spec, Road(spec.address, cut_up=[1_500_000, 1_000_000]) as road:
        told = send(connected(road.address))
        assert road.cuts_left == 0
        assert spec.blobs == {LAYER.digest: DATA}
        assert sum(told) == SIZE
        assert SIZE <= road.moved["up"] < SIZE + AROUND


def test_a_registry_says_how_large_chunks_must_be(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upload, "CHUNK_BYTES", 1 << 20)
    with SpecRegistry(least_chunk=3 << 20) as spec:
        send(connected(spec.address))
        assert spec.ranges == [(0, (3 << 20) - 1), (3 << 20, SIZE - 1)]
        assert spec.blobs == {LAYER.digest: DATA}


def test_an_upload_to_a_registry_that_forgets_begins_anew(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    """Debian's docker-registry drops an upload that was cut within a chunk."""
    monkeypatch.setattr(upload, "CHUNK_BYTES", 1 << 20)
    with Road(registry.address, cut_up=[1_500_000]) as road:
        assert sum(send(connected(road.address))) == SIZE
        assert road.moved["up"] < SIZE + 1_500_000 + AROUND
    assert registry.blob(LAYER.digest).read_bytes() == DATA


def test_an_upload_whose_last_byte_is_cut_off_ends_well(registry: Registry):
    """The connection is cut before the registry says whether it has all."""
    data = bytes_of(8, 1000)
    layer = Layer("a", len(data), digest_of(data), "application/octet-stream")
    with Road(registry.address) as road:
        send(connected(road.address), data, layer)
        counted = road.moved["up"]
    for seed in range(10, 40):  # how many bytes go up depends on the time in the URL, whose last zeros are left out
        data = bytes_of(seed, 1000)
        layer = Layer("a", len(data), digest_of(data), "application/octet-stream")
        with Road(registry.address, cut_up=[counted]) as road:
            assert sum(send(connected(road.address), data, layer)) == len(data)
        assert registry.blob(layer.digest).read_bytes() == data
        if road.cuts_left == 0:
            return
    pytest.fail("no upload was cut")


def test_an_upload_that_gets_nowhere_ends(registry: Registry):
    with (
        Road(registry.address, cut_up=[3_000_000] * 50) as road,
        pytest.raises(RegistryError, match=r"fails|answers 404"),
    ):
        send(connected(road.address), bytes_of(9, SIZE), Layer("a", SIZE, digest_of(bytes_of(9, SIZE)), "x"))


def test_a_download_goes_on_behind_what_came(registry: Registry, tmp_path: Path):
    send(connected(registry.address))
    with Road(registry.address, cut_down=[1_000_000, 1_000_000, 5]) as road:
        came: list[int] = []
        fetch_blob(connected(road.address), LAYER, tmp_path / "blob", came.append)
        assert road.cuts_left == 0
        assert road.moved["down"] < SIZE + AROUND
        assert sum(came) == SIZE
    assert (tmp_path / "blob").read_bytes() == DATA


@pytest.mark.parametrize("left", [DATA[: SIZE // 2], DATA, DATA + b"more", b"other" + DATA[5 : SIZE // 2]])
def test_whatever_an_earlier_pull_left_the_blob_is_right(left: bytes, registry: Registry, tmp_path: Path):
    send(connected(registry.address))
    (tmp_path / "blob").write_bytes(left)
    came: list[int] = []
    fetch_blob(connected(registry.address), LAYER, tmp_path / "blob", came.append)
    assert (tmp_path / "blob").read_bytes() == DATA
    if DATA.startswith(left):
        assert sum(came) == SIZE - len(left)


def test_a_registry_without_ranges_sends_all_again(tmp_path: Path):
    with SpecRegistry(ranges=False) as spec:
        spec.blobs[LAYER.digest] = DATA
        (tmp_path / "blob").write_bytes(DATA[:1_000_000])
        fetch_blob(connected(spec.address), LAYER, tmp_path / "blob", lambda amount: None)
    assert (tmp_path / "blob").read_bytes() == DATA


def test_a_push_that_broke_does_not_move_whole_files_again(bundle: Path, registry: Registry):
    place = "tests/broken-push:1"
    with Road(registry.address, cut_up=[700_000] + [1] * 200) as road, pytest.raises(RegistryError):
        push(bundle, Reference.parse(f"{road.address}/{place}"))
    size = sum(map(len, contents(bundle).values()))
    pushed = push(bundle, Reference.parse(f"{registry.address}/{place}"))
    assert pushed.bytes_there > 0
    assert pushed.bytes_moved < size


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_pull_that_was_stopped_goes_on(bundle: Path, registry: Registry, tmp_path: Path, number: int):
    place = f"tests/stopped-{int(number)}:1"
    push(bundle, Reference.parse(f"{registry.address}/{place}"))
    sizes = [len(data) for data in contents(bundle).values()]
    size, under_way = sum(sizes), PARALLEL * max(sizes)  # of what was under way nothing may have reached the disk
    with Road(registry.address, hold_down=size // 2) as road:
        command = [sys.executable, "-c", QPACK, "pull", f"{road.address}/{place}", "-o", str(tmp_path / "bundle")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        road.holds.wait()
        process.send_signal(number)
        _, said = process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else -number), said
    assert b"Traceback" not in said
    left = [name for name in os.listdir(tmp_path) if name != "docker"]
    assert len(left) == 1
    assert left[0].startswith(".bundle.")
    with Road(registry.address) as road:
        pulled = pull(Reference.parse(f"{road.address}/{place}"), tmp_path / "bundle")
        assert road.moved["down"] < size - size // 2 + under_way + AROUND < size
        assert 0 < pulled.bytes_moved < size - size // 2 + under_way
    assert contents(tmp_path / "bundle") == contents(bundle)
    assert sorted(os.listdir(tmp_path)) == ["bundle", "docker"]
