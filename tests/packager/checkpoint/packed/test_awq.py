"""AWQ checkpoints against compressed-tensors' converter of AutoAWQ's layout, and one weight at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import TINY_QWEN3, TINY_QWEN3_5, read_config, write_checkpoint
from packed_checkpoints import AWQ_CONFIG, awq, packed_checkpoint
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.source_tensor import PackedTensor, as_packed
from qpack_schemas.errors import InputError, QpackError, UnsupportedError

STEM, NAME = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj.weight"


def parts(lines: int, columns: int, count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Words of any bits."""
    rng = np.random.default_rng(seed)
    return {
        "qweight": rng.integers(-(2**31), 2**31, (columns, lines // 8)).astype(np.int32),
        "qzeros": rng.integers(-(2**31), 2**31, (count, lines // 8)).astype(np.int32),
        "scales": rng.normal(0, 1, (count, lines)).astype(np.float16),
    }


def opened(folder: Path, tensors: dict[str, np.ndarray], **changes: Any) -> PackedTensor:
    config = {**read_config(TINY_QWEN3), "quantization_config": {**AWQ_CONFIG, **changes}}
    held = {f"{STEM}.{part}": tensor for part, tensor in tensors.items()}
    tensor = as_packed(Checkpoint.open(ModelText(write_checkpoint(folder, config, held))).tensors[NAME])
    assert tensor is not None
    return tensor


def refusal(kind: type[QpackError], *arguments: Any, **changes: Any) -> str:
    with pytest.raises(kind) as caught:
        _ = opened(*arguments, **changes).asymmetric
    assert caught.value.where
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize("source", [TINY_QWEN3, TINY_QWEN3_5])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_whole_checkpoint_is_read_as_the_library_converts_it(source: Path, symmetric: bool, tmp_path: Path):
    path, weights = packed_checkpoint(tmp_path / "model", source, AWQ_CONFIG, awq, symmetric=symmetric)
    checkpoint = Checkpoint.open(ModelText(path))
    for name, weight in weights.items():
        tensor = as_packed(checkpoint.tensors[name])
        assert tensor is not None
        assert tensor.asymmetric is not symmetric
        for first, last in ((0, tensor.shape[0]), (3, 18), (9, 10)):
            found = tensor.codes(first, last)
            assert np.array_equal(tensor.lines(first, last), weight.values[first:last])
            assert np.array_equal(found.codes, weight.codes[first:last])
            zeros = np.full_like(weight.zeros, 8)[first:last] if found.zeros is None else found.zeros
            assert np.array_equal(zeros, weight.zeros[first:last])


@given(lines=st.integers(2, 4), count=st.integers(2, 3), seed=st.integers(0, 2**32))
def test_codes_zeros_and_scales_are_those_of_the_library(
    tmp_path_factory: pytest.TempPathFactory, lines: int, count: int, seed: int
):
    tensors = parts(8 * lines, 128 * count, count, seed)
    found = opened(tmp_path_factory.mktemp("awq"), tensors).codes(0, 8 * lines)
    converted = AutoAWQConverter(ignore=()).process(
        {f"x.{part}": torch.from_numpy(one) for part, one in tensors.items()}
    )
    shape = torch.Size(converted["x.weight_shape"].tolist())
    codes = unpack_from_int32(converted["x.weight_packed"], 4, shape).numpy() + 8
    zeros = (
        unpack_from_int32(converted["x.weight_zero_point"], 4, torch.Size([shape[0], count]), packed_dim=0).numpy() + 8
    )
    assert np.array_equal(found.codes, codes)
    assert found.zeros is not None
    assert np.array_equal(found.zeros, zeros)
    assert np.array_equal(found.scales, converted["x.weight_scale"].numpy())


@given(st.integers(0, 2**32))
def test_each_weight_is_the_published_formula(tmp_path_factory: pytest.TempPathFactory, seed: int):
    """weight[n, k] = scales[g, n] * (code - zero), g = k // group size; line n is in bits 4p on of word n // 8, where
    order[p] = n % 8 and order = 0 2 4 6 1 3 5 7."""
    tensors, rng = parts(24, 256, 2, seed), np.random.default_rng(seed)
    tensor = opened(tmp_path_factory.mktemp("awq"), tensors)
    whole = tensor.lines(0, 24)
    for n, k in zip(rng.integers(24, size=20), rng.integers(256, size=20), strict=True):
        place = 4 * (0, 2, 4, 6, 1, 3, 5, 7).index(n % 8)
        code, zero = (
            int(tensors[part][row, n // 8]) >> place & 15 for part, row in (("qweight", k), ("qzeros", k // 128))
        )
        wanted = np.float32(tensors["scales"][k // 128, n]) * (code - zero)
        assert whole[n, k] == wanted


@pytest.mark.parametrize(("size", "count"), [(256, 2), (-1, 1)])
def test_wider_groups_are_exact(size: int, count: int, tmp_path: Path):
    tensors = parts(16, 512, count)
    codes = opened(tmp_path, tensors, group_size=size).codes(0, 16)
    assert np.array_equal(codes.scales, np.repeat(tensors["scales"].T, 4 // count, axis=1))


def test_narrower_groups_are_refused(tmp_path: Path):
    message = refusal(UnsupportedError, tmp_path, parts(16, 256, 4), group_size=64)
    assert "columns 0 and 64 are in groups 0 and 1" in message
    assert f"{STEM}.qweight" in message
    assert "groups of 128" in message


def test_weights_without_zeros_are_symmetric_if_config_says_so(tmp_path: Path):
    tensors = parts(16, 128, 1)
    del tensors["qzeros"]
    assert not opened(tmp_path, tensors, zero_point=False).asymmetric


@pytest.mark.parametrize(("value", "said"), [(True, "true"), (None, "absent")])
def test_zeros_that_config_does_not_deny_are_missed(value: bool | None, said: str, tmp_path: Path):
    """A checkpoint that has lost a part; zeros of 8 would make other weights of it."""
    tensors = parts(16, 128, 1)
    del tensors["qzeros"]
    message = refusal(InputError, tmp_path, tensors, zero_point=value)
    assert f"{STEM}.qweight: comes without qzeros" in message
    assert f"config.json#/quantization_config/zero_point is {said}" in message


def test_one_weight_without_zeros_is_named(tmp_path: Path):
    path, _ = packed_checkpoint(tmp_path, TINY_QWEN3, AWQ_CONFIG, awq, changes={f"{STEM}.qzeros": None})
    with pytest.raises(InputError, match=f"{STEM}.qweight: comes without qzeros"):
        Checkpoint.open(ModelText(path))


@pytest.mark.parametrize(
    ("key", "value"), [("version", "gemv"), ("version", "gemv_fast"), ("version", "marlin"), ("bits", 8), ("w_bit", 3)]
)
def test_other_layouts_and_bits_are_refused_by_name(key: str, value: Any, tmp_path: Path):
    message = refusal(UnsupportedError, tmp_path, parts(16, 128, 1), **{key: value})
    assert f"config.json#/quantization_config/{key}" in message
    assert str(value) in message
    assert "gemm" in message


def test_the_layout_may_be_in_capitals(tmp_path: Path):
    assert opened(tmp_path, parts(16, 128, 1), version="GEMM").shape == (16, 128)


def test_tensors_of_gemv_are_refused_whatever_config_says(tmp_path: Path):
    """There the codes lie along K: qweight [N, K/8], scales [N, ...]."""
    rng = np.random.default_rng(0)
    tensors = {
        "qweight": rng.integers(0, 9, (64, 32)).astype(np.int32),
        "qzeros": rng.integers(0, 9, (64, 1)).astype(np.int32),
        "scales": rng.normal(0, 1, (64, 8)).astype(np.float16),
    }
    message = refusal(UnsupportedError, tmp_path, tensors)
    assert "[64, 32]" in message
    assert "[64, 8]" in message


@pytest.mark.parametrize(("size", "count"), [(64, 2), (128, 1)])
def test_another_group_size_in_config_is_refused_with_both_values(size: int, count: int, tmp_path: Path):
    message = refusal(InputError, tmp_path, parts(16, 256, count), group_size=size)
    assert f"{count} groups of 256 columns" in message
    assert f"the group size is {size}" in message


def test_zero_point_false_with_other_zeros_is_refused_with_both_facts(tmp_path: Path):
    message = refusal(InputError, tmp_path, parts(16, 128, 1), zero_point=False)
    assert "/zero_point" in message
    assert f"{STEM}.qzeros" in message
