"""Weight files as the safetensors library reads them: whole, aligned, nothing beside the tensors, of a bounded size."""

import json
import tracemalloc
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from qpack_packager.bundle_writer import BundleWriter
from qpack_packager.export.bundle_weights import BundleWeights
from qpack_packager.export.write import Entry, write_shards

from .made_bundles import bundle_of

TENSORS = {
    "odd": np.arange(3, dtype=np.float16),
    "matrix": np.arange(35, dtype=np.float32).reshape(5, 7),
    "shape": np.array([5, 7], np.int64),
    "words": np.arange(9, dtype=np.int32).reshape(3, 3),
}


def lines_of(tensor: np.ndarray) -> Iterator[np.ndarray]:
    return (tensor[i : i + 1] for i in range(len(tensor)))


def write(folder: Path, tensors: Mapping[str, np.ndarray], limit: int = 10**9) -> list[str]:
    """Writes them line by line. The names in the order in which they were finished."""
    finished: list[str] = []
    entries = [
        Entry(name, tensor.dtype.name, tensor.shape, partial(lines_of, tensor)) for name, tensor in tensors.items()
    ]
    write_shards(BundleWriter(folder), entries, lambda name, amount=1: finished.append(name), limit)
    return finished


def test_the_library_reads_what_was_written(tmp_path: Path):
    assert sorted(write(tmp_path, TENSORS)) == sorted(TENSORS)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}  # without which transformers refuses it
        assert set(file.keys()) == set(TENSORS)  # no fillers, which engines would take for weights
        for name, tensor in TENSORS.items():
            np.testing.assert_array_equal(file.get_tensor(name), tensor)


def test_each_tensor_is_aligned_to_its_numbers(tmp_path: Path):
    write(tmp_path, TENSORS)
    raw = (tmp_path / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    for name, tensor in TENSORS.items():
        assert (8 + size + header[name]["data_offsets"][0]) % tensor.itemsize == 0


def test_files_are_cut_where_the_next_tensor_would_be_too_much(tmp_path: Path):
    write(tmp_path, TENSORS, limit=162)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["metadata"] == {"total_size": sum(tensor.nbytes for tensor in TENSORS.values())}
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert index["weight_map"] == {name: files[name == "words"] for name in TENSORS}
    for file in files:
        with safe_open(tmp_path / file, "np") as handle:
            assert {name for name, place in index["weight_map"].items() if place == file} == set(handle.keys())


def test_a_tensor_that_is_not_as_planned_is_noticed(tmp_path: Path):
    short = Entry("w", "int32", (3, 2), lambda: [np.zeros((2, 2), np.int32)])
    with pytest.raises(AssertionError, match="w has 16 bytes, not 24"):
        write_shards(BundleWriter(tmp_path), [short], lambda name, amount=1: None)
    other = Entry("w", "int32", (3, 2), lambda: [np.zeros((3, 2), np.uint32)])
    with pytest.raises(AssertionError, match="w: uint32"):
        write_shards(BundleWriter(tmp_path), [other], lambda name, amount=1: None)


def test_no_matrix_is_ever_whole_in_memory(tmp_path: Path):
    """An embedding of 64 MiB of float32 goes through a few blocks of 4 MiB."""
    codes, scales = np.ones((65536, 256), np.int8), np.ones((65536, 2), np.float16)
    forms = {"embed.q": "int8_codes", "embed.scale": "int8_scales"}
    tensors = {"embed.q": codes, "embed.scale": scales}
    weights = BundleWeights(bundle_of(tmp_path, tensors, forms, ["model.embed_tokens.weight"], codes.shape))
    (weight,) = weights.weights
    pieces = lambda: (weights.numbers(weight, *block) for block in weight.blocks())  # noqa: E731
    tracemalloc.start()
    try:
        write_shards(BundleWriter(tmp_path), [Entry("w", "float32", codes.shape, pieces)], lambda name, amount=1: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "model.safetensors").stat().st_size > 2**26
    assert peak < 24 * 2**20
