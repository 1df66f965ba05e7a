"""compressed-tensors' pack-quantized checkpoints against the library that writes them."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

from checkpoints import TINY_QWEN3, TINY_QWEN3_5, read_config, write_checkpoint
from compressed_checkpoints import compressed_checkpoint
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.source_tensor import PackedTensor, as_packed
from qpack_schemas.errors import InputError, QpackError, UnsupportedError

STEM, NAME = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj.weight"
GROUPS: dict[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": GROUPS}},
}


def weights(**changes: Any) -> dict[str, Any]:
    """The quantization_config whose only group says so about its weights."""
    return {**CONFIG, "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**GROUPS, **changes}}}}


def parts(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Codes and zeros -8..7, packed by the library."""
    found = {
        "weight_packed": pack_to_int32(torch.from_numpy(codes), 4).numpy(),
        "weight_scale": scales,
        "weight_shape": np.array(codes.shape, np.int64),
    }
    return found if zeros is None else found | {
        "weight_zero_point": pack_to_int32(torch.from_numpy(zeros), 4, packed_dim=0).numpy()
    }  # fmt: skip


def random_parts(lines: int = 16, columns: int = 256, count: int = 2, *, zeros: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    codes, scales = rng.integers(-8, 8, (lines, columns), np.int8), rng.normal(0, 1, (lines, count))
    return parts(codes, scales.astype(np.float16), rng.integers(-8, 8, (lines, count), np.int8) if zeros else None)


def opened(folder: Path, tensors: dict[str, np.ndarray], config: dict[str, Any] = CONFIG) -> PackedTensor:
    held = {f"{STEM}.{part}": np.ascontiguousarray(one) for part, one in tensors.items()}
    whole = {**read_config(TINY_QWEN3), "quantization_config": config}
    tensor = as_packed(Checkpoint.open(ModelText(write_checkpoint(folder, whole, held))).tensors[NAME])
    assert tensor is not None
    return tensor


def refusal(kind: type[QpackError], *arguments: Any) -> str:
    with pytest.raises(kind) as caught:
        _ = opened(*arguments).asymmetric
    assert caught.value.where
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize("source", [TINY_QWEN3, TINY_QWEN3_5])
@pytest.mark.parametrize(
    ("dtype", "changes"),
    [
        (torch.bfloat16, {}),
        (torch.float16, {"symmetric": False}),
        (torch.bfloat16, {"strategy": "channel", "group_size": None, "symmetric": False}),
        (torch.bfloat16, {"strategy": "tensor", "group_size": None, "symmetric": False}),
    ],
)
def test_a_whole_checkpoint_is_read_as_the_library_decompresses_it(
    source: Path, dtype: torch.dtype, changes: dict[str, Any], tmp_path: Path
):
    path, wanted = compressed_checkpoint(tmp_path, source, dtype=dtype, **{**GROUPS, **changes})
    checkpoint = Checkpoint.open(ModelText(path))
    assert len(wanted) >= 24
    for name, lines in wanted.items():
        tensor = as_packed(checkpoint.tensors[name])
        assert tensor is not None
        assert tensor.scale_dtype == str(dtype).removeprefix("torch.")
        assert np.array_equal(tensor.lines(0, tensor.shape[0]), lines)


@pytest.mark.parametrize("zeros", [-8, -1, 0, 7])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_codes_and_zeros_are_what_is_stored_plus_8(zeros: int, dtype: Any, tmp_path: Path):
    rng = np.random.default_rng(zeros + 8)
    codes = rng.integers(-8, 8, (20, 384), np.int8)
    scales = rng.normal(0, 1, (20, 3)).astype(dtype)
    config = weights(symmetric=False)
    tensor = opened(tmp_path, parts(codes, scales, np.full((20, 3), zeros, np.int8)), config)
    found = tensor.codes(3, 18)
    assert np.array_equal(found.codes, codes[3:18] + 8)
    assert np.array_equal(found.scales, scales[3:18])
    assert tensor.asymmetric == (zeros != 0)
    assert found.zeros is None if zeros == 0 else (found.zeros == zeros + 8).all()
    wanted = (codes - np.float32(zeros)) * np.repeat(scales.astype(np.float32), 128, axis=1)
    assert np.array_equal(tensor.lines(3, 18), wanted[3:18])


def test_lines_may_begin_and_end_within_a_word_of_zeros(tmp_path: Path):
    tensors = random_parts(20, 256, 2, zeros=True)
    tensor = opened(tmp_path, tensors, weights(symmetric=False))
    packed = torch.from_numpy(tensors["weight_zero_point"])
    zeros = unpack_from_int32(packed, 4, torch.Size([20, 2]), packed_dim=0).numpy() + 8
    for first, last in ((0, 20), (3, 18), (9, 10), (8, 16)):
        found = tensor.codes(first, last)
        assert found.zeros is not None
        assert np.array_equal(found.zeros, zeros[first:last])
        steps = found.codes - np.repeat(zeros[first:last].astype(np.float32), 128, axis=1)
        assert np.array_equal(
            tensor.lines(first, last), steps * np.repeat(found.scales.astype(np.float32), 128, axis=1)
        )


def test_columns_that_fill_no_word_are_read(tmp_path: Path):
    codes = np.random.default_rng(0).integers(-8, 8, (8, 100), np.int8)
    tensor = opened(tmp_path, parts(codes, np.ones((8, 1), np.float16)), weights(strategy="channel", group_size=None))
    assert tensor.shape == (8, 100)
    assert np.array_equal(tensor.codes(0, 8).codes, codes + 8)


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()])
def test_one_scale_for_all_is_exact(shape: tuple[int, ...], tmp_path: Path):
    codes = np.random.default_rng(0).integers(-8, 8, (8, 256), np.int8)
    scale = np.full(shape, 0.25, np.float16)
    tensor = opened(tmp_path, parts(codes, scale), weights(strategy="tensor", group_size=None))
    assert np.array_equal(tensor.codes(0, 8).scales, np.full((8, 2), 0.25, np.float16))
    assert np.array_equal(tensor.lines(0, 8), codes * np.float32(0.25))


def test_groups_that_a_g_idx_lists_are_exact_if_they_are_whole(tmp_path: Path):
    """Older versions of the library write one for actorder "group"; scales[g_idx[k]] is column k's."""
    tensors = random_parts()
    index = np.repeat(np.array([1, 0], np.int32), 128)
    scales = opened(tmp_path, tensors | {"weight_g_idx": index}).codes(0, 16).scales
    assert np.array_equal(scales, tensors["weight_scale"][:, ::-1])
    mixed = np.arange(256, dtype=np.int32) % 2
    assert "columns 0 and 1" in refusal(UnsupportedError, tmp_path / "mixed", tensors | {"weight_g_idx": mixed})


@pytest.mark.parametrize(
    ("config", "named", "value"),
    [
        (CONFIG | {"format": "int-quantized"}, "/format", '"int-quantized"'),
        (CONFIG | {"format": "marlin-24"}, "/format", '"marlin-24"'),
        (CONFIG | {"format": "nvfp4-pack-quantized"}, "/format", '"nvfp4-pack-quantized"'),
        (CONFIG | {"transform_config": {"config_groups": {}}}, "/transform_config", "config_groups"),
        (CONFIG | {"sparsity_config": {"format": "sparse-bitmask"}}, "/sparsity_config/format", '"sparse-bitmask"'),
    ],
)
def test_other_formats_are_refused_by_name(config: dict[str, Any], named: str, value: str, tmp_path: Path):
    message = refusal(UnsupportedError, tmp_path, random_parts(), config)
    assert f"config.json#/quantization_config{named}" in message
    assert value in message
    assert "pack-quantized" in message


def test_a_format_of_one_group_is_looked_at_as_well(tmp_path: Path):
    config = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
        "group_0": {"weights": GROUPS, "format": "pack-quantized"},
        "group_1": {"weights": {"num_bits": 4, "type": "float"}, "format": "nvfp4-pack-quantized"},
    }}  # fmt: skip
    message = refusal(UnsupportedError, tmp_path, random_parts(), config)
    assert "/config_groups/group_1/format" in message


def test_other_bits_are_told_by_the_tensors(tmp_path: Path):
    codes = np.zeros((16, 256), np.int8)
    tensors = parts(codes, np.ones((16, 2), np.float16))
    tensors["weight_packed"] = pack_to_int32(torch.from_numpy(codes), 6).numpy()
    message = refusal(UnsupportedError, tmp_path, tensors)
    assert "6 bits for each of 256 columns; only 4 and 8 are read" in message
    assert f"{STEM}.weight_packed" in message


@pytest.mark.parametrize(("count", "size"), [(4, 64), (8, 32)])
def test_narrower_groups_are_refused(count: int, size: int, tmp_path: Path):
    message = refusal(UnsupportedError, tmp_path, random_parts(count=count), weights(group_size=size))
    assert f"columns 0 and {size} are in groups 0 and 1" in message
    assert "groups of 128" in message


def test_another_group_size_in_config_is_refused_with_both_values(tmp_path: Path):
    message = refusal(InputError, tmp_path, random_parts(), weights(group_size=32))
    assert "2 groups of 256 columns" in message
    assert "the group size is 32" in message


def test_zeros_that_config_denies_are_refused_with_both_facts(tmp_path: Path):
    message = refusal(InputError, tmp_path, random_parts(zeros=True))
    assert f"{STEM}.weight_zero_point" in message
    assert "/config_groups" in message


def test_zeros_that_config_promises_are_missed(tmp_path: Path):
    message = refusal(InputError, tmp_path, random_parts(), weights(symmetric=False))
    assert f"{STEM}.weight_packed" in message
    assert "asymmetric" in message


@pytest.mark.parametrize("part", ["weight_scale", "weight_shape"])
def test_an_absent_part_is_named(part: str, tmp_path: Path):
    tensors = random_parts()
    del tensors[part]
    message = refusal(InputError, tmp_path, tensors)
    assert f"without {part}" in message
    assert STEM in message


def test_a_shape_that_the_codes_do_not_have_is_refused_with_both(tmp_path: Path):
    tensors = random_parts() | {"weight_shape": np.array([32, 256], np.int64)}
    message = refusal(InputError, tmp_path, tensors)
    assert "[32, 256]" in message
    assert "16 lines" in message


def test_float32_scales_of_the_library_are_refused_with_a_remedy_that_helps(tmp_path: Path):
    path, _ = compressed_checkpoint(tmp_path, TINY_QWEN3, dtype=torch.float32, **GROUPS)
    with pytest.raises(
        UnsupportedError, match=r"weight_scale: is float32; .*\n.*load the model in bfloat16 or float16"
    ):
        Checkpoint.open(ModelText(path))


def test_blocks_of_codes_are_refused_by_their_name(tmp_path: Path):
    changes = {"strategy": "block", "group_size": None, "block_structure": [128, 128]}
    path, _ = compressed_checkpoint(tmp_path, TINY_QWEN3, **{**GROUPS, **changes})
    with pytest.raises(UnsupportedError, match=r'/group_0/weights/strategy: strategy is "block": of codes only'):
        Checkpoint.open(ModelText(path))


@pytest.mark.parametrize("zero", [-9, 8])
def test_a_zero_for_all_that_four_bits_do_not_hold_is_refused(zero: int, tmp_path: Path):
    tensors = parts(np.zeros((16, 256), np.int8), np.ones(1, np.float16))
    tensors["weight_zero_point"] = np.array([zero], np.int8)
    config = weights(strategy="tensor", group_size=None, symmetric=False)
    assert f"is {zero}; with 4 bits a zero is -8 to 7" in refusal(InputError, tmp_path, tensors, config)
