"""The cost model's choices: legal, cheapest of all legal ones, explainable, and overruled by measurements."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_packager.cuda.lowering.tiles import MOST_PLANES, TILES, Tile, Tuning, candidates, choose, cost
from qpack_packager.cuda.targets import ARCHITECTURES
from qpack_packager.devices import DEVICES, typical
from qpack_schemas.errors import InputError

SHAPES = st.tuples(st.integers(1, 96).map(lambda g: 128 * g), st.integers(1, 400).map(lambda t: 64 * t))
ARCHES = st.sampled_from(sorted({device.architecture for device in DEVICES}))


@given(ARCHES, SHAPES)
def test_the_choice_covers_every_column_and_every_group_once(architecture: str, shape: tuple[int, int]):
    k, n = shape
    tile = choose(typical(architecture), Tuning(), k, n)
    assert tile.columns in TILES
    assert n % tile.columns == 0
    groups, share = k // 128, -(-(k // 128) // tile.planes)
    starts = [plane * share for plane in range(tile.planes)]
    assert 1 <= tile.planes <= MOST_PLANES
    assert starts[-1] < groups <= starts[-1] + share  # the last plane has work, and nothing is left behind it


@given(ARCHES, SHAPES)
def test_the_choice_is_the_cheapest_of_all_that_are_legal(architecture: str, shape: tuple[int, int]):
    device = typical(architecture)
    best = choose(device, Tuning(), *shape)
    assert all(cost(device, *shape, best) <= cost(device, *shape, other) for other in candidates(*shape))


@given(ARCHES, SHAPES)
def test_no_choice_is_priced_below_what_the_bandwidth_allows(architecture: str, shape: tuple[int, int]):
    """int4 codes and 16-bit scales of a [K, N] weight are K * N / 2 + K / 128 * N * 2 bytes."""
    device, (k, n) = typical(architecture), shape
    for tile in candidates(k, n):
        assert cost(device, k, n, tile) > (k * n / 2 + k // 128 * n * 2) / device.bytes_per_second


def test_a_small_weight_is_split_more_than_a_large_one():
    """A weight with fewer columns than the GPU has room for fills it by its planes."""
    h200 = typical("sm_90")
    small, large = (choose(h200, Tuning(), *shape) for shape in ((3072, 1024), (4096, 24576)))
    assert small.planes > large.planes


def test_every_architecture_that_is_compiled_for_has_one_typical_device():
    for sm in ARCHITECTURES:
        assert typical(f"sm_{sm}").typical
    assert {int(device.architecture.removeprefix("sm_")) for device in DEVICES} == set(ARCHITECTURES)


def test_figures_are_those_of_the_data_sheets():
    """By hand from NVIDIA's pages: SMs, GB/s."""
    known = {(device.name, device.sms, device.bytes_per_second) for device in DEVICES}
    assert {("H200", 132, 4.8e12), ("GeForce RTX 4090", 128, 1.008e12), ("Jetson AGX Orin 64GB", 16, 2.048e11)} <= known


def test_a_measured_tile_overrules_the_model(tmp_path: Path):
    file = tmp_path / "tuning.json"
    tiles = {"sm_89": {"1024x4096": {"columns": 64, "planes": 2}}}
    file.write_text(json.dumps({"tuning_version": 1, "tiles": tiles}), encoding="utf-8")
    tuning = Tuning.read(file)
    assert choose(typical("sm_89"), tuning, 1024, 4096) == Tile(64, 2)
    h200, shape = typical("sm_90"), (1024, 4096)
    assert choose(h200, tuning, *shape) == choose(h200, Tuning(), *shape)


def test_a_measured_tile_that_the_weight_cannot_have_is_refused():
    tuning = Tuning({"sm_89": {"1024x4160": Tile(256, 2)}})
    with pytest.raises(InputError, match=r"sm_89.*256 columns and 2 planes.*1024x4160"):
        choose(typical("sm_89"), tuning, 1024, 4160)


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"tiles": {}}, "tuning_version"),
        ({"tuning_version": 2, "tiles": {}}, "tuning_version"),
        ({"tuning_version": 1, "tiles": {"sm_89": {"1024x4096": {"columns": 96, "planes": 1}}}}, "columns"),
        ({"tuning_version": 1, "tiles": {"ada": {}}}, "ada"),
    ],
)
def test_a_file_that_is_no_tuning_file_is_refused_by_its_place(document: object, place: str, tmp_path: Path):
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=place):
        Tuning.read(file)
