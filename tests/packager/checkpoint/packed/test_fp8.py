"""FP8 checkpoints against torch's float8, transformers' own dequantization and compressed-tensors'."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

from checkpoints import TINY_QWEN3, TINY_QWEN3_5, read_config, write_checkpoint
from compressed_checkpoints import compressed_checkpoint
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.source_tensor import Tensor
from qpack_schemas.errors import InputError, QpackError, UnsupportedError

STEM, NAME = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj.weight"
CONFIG: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
SCALES = {np.float32: torch.float32, ml_dtypes.bfloat16: torch.bfloat16}


def numbers(lines: int, columns: int, seed: int = 0) -> np.ndarray:
    """Every bit pattern of e4m3 but its two NaNs."""
    patterns = np.array([byte for byte in range(256) if byte & 127 != 127], np.uint8)
    return np.random.default_rng(seed).choice(patterns, (lines, columns)).view(ml_dtypes.float8_e4m3fn)


def opened(folder: Path, tensors: dict[str, np.ndarray], config: dict[str, Any] = CONFIG) -> Tensor:
    held = {f"{STEM}.{part}": tensor for part, tensor in tensors.items()}
    whole = {**read_config(TINY_QWEN3), "quantization_config": config}
    checkpoint = Checkpoint.open(ModelText(write_checkpoint(folder, whole, held)))
    assert set(checkpoint.tensors) == {NAME}
    return checkpoint.tensors[NAME]


def refusal(kind: type[QpackError], *arguments: Any) -> str:
    with pytest.raises(kind) as caught:
        opened(*arguments)
    assert caught.value.where
    assert caught.value.remedy
    return str(caught.value)


def in_torch(weight: np.ndarray, scale: np.ndarray, block: list[int] | None) -> np.ndarray:
    """As transformers dequantizes, in float32."""
    ours = torch.from_numpy(weight.view(np.uint8)).view(torch.float8_e4m3fn)
    return _dequantize_fp8_weight(ours, torch.from_numpy(scale.astype(np.float32)), block, torch.float32).numpy()


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("shape", "block"), [((256, 384), [128, 128]), ((200, 300), [128, 128]), ((96, 70), [32, 16])])
def test_blocks_equal_torchs_arithmetic(shape: tuple[int, int], block: list[int], dtype: Any, tmp_path: Path):
    weight, grid = numbers(*shape), (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    scale = np.random.default_rng(1).lognormal(-6, 3, grid).astype(dtype)
    tensor = opened(tmp_path, {"weight": weight, "weight_scale_inv": scale}, CONFIG | {"weight_block_size": block})
    wanted = in_torch(weight, scale, block)
    assert (tensor.dtype, tensor.shape) == ("float32", shape)
    for first, last in ((0, shape[0]), (7, 90)):
        assert tensor.lines(first, last).tobytes() == wanted[first:last].tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_one_scale_for_all_equals_torchs_arithmetic(shape: tuple[int, ...], name: str, tmp_path: Path):
    weight, scale = numbers(16, 40), np.full(shape, 0.0123, np.float32)
    parts = {"weight": weight, name: scale, "input_scale": np.ones(1, np.float32)}
    found = opened(tmp_path, parts, CONFIG | {"weight_block_size": None}).lines(0, 16)
    assert found.tobytes() == in_torch(weight, scale.reshape(1), None).tobytes()


@pytest.mark.parametrize("shape", [(16, 1), (16,)])
def test_one_scale_a_line_equals_torchs_arithmetic(shape: tuple[int, ...], tmp_path: Path):
    weight, scale = numbers(16, 40), np.random.default_rng(0).lognormal(-6, 3, shape).astype(np.float32)
    found = opened(tmp_path, {"weight": weight, "weight_scale": scale}).lines(3, 16)
    assert found.tobytes() == in_torch(weight, scale.reshape(16, 1), [1, 40])[3:].tobytes()


@pytest.mark.parametrize("source", [TINY_QWEN3, TINY_QWEN3_5])
@pytest.mark.parametrize(
    "strategy",
    [
        {"strategy": "channel"},
        {"strategy": "tensor"},
        {"strategy": "block", "block_structure": [128, 128]},
        {"strategy": "group", "group_size": 64},
    ],
)
def test_a_checkpoint_of_compressed_tensors_is_read_as_the_library_decompresses_it(
    source: Path, strategy: dict[str, Any], tmp_path: Path
):
    path, wanted = compressed_checkpoint(tmp_path, source, num_bits=8, type="float", symmetric=True, **strategy)
    checkpoint = Checkpoint.open(ModelText(path))
    assert len(wanted) >= 24
    for name, lines in wanted.items():
        tensor = checkpoint.tensors[name]
        assert tensor.dtype == "float32"
        assert tensor.lines(0, tensor.shape[0]).tobytes() == lines.tobytes()


def test_scales_that_are_powers_of_two_equal_torchs(tmp_path: Path):
    """Each of e8m0 but 255, which is NaN: 2^(byte - 127)."""
    weight, bytes_ = numbers(255, 40), np.arange(255, dtype=np.uint8)[:, None]
    tensors = {"weight": weight, "weight_scale": bytes_.view(ml_dtypes.float8_e8m0fnu)}
    found = opened(tmp_path, tensors).lines(0, 255)
    scale = torch.from_numpy(bytes_).view(torch.float8_e8m0fnu).float().numpy()
    assert np.array_equal(scale[:, 0], np.ldexp(np.float32(1), np.arange(255) - 127))
    assert found.tobytes() == in_torch(weight, scale, [1, 40]).tobytes()


def test_nan_stays_nan_for_whoever_refuses_it(tmp_path: Path):
    weight = numbers(8, 8)
    weight.view(np.uint8)[2, 3] = 0x7F
    found = opened(tmp_path, {"weight": weight, "weight_scale": np.full(1, 3e38, np.float32)}).lines(0, 8)
    assert np.isnan(found[2, 3])
    assert np.isinf(found).any()


@pytest.mark.parametrize(("scale", "shown"), [((2, 2), "[2, 2]"), ((3, 1), "[3, 1]"), ((15, 1), "[15, 1]")])
def test_scales_that_do_not_cover_the_weight_are_refused_with_both_shapes(scale: Any, shown: str, tmp_path: Path):
    parts = {"weight": numbers(16, 40), "weight_scale_inv": np.ones(scale, np.float32)}
    message = refusal(InputError, tmp_path, parts)
    assert f"{STEM}.weight_scale_inv" in message
    assert shown in message
    assert "[16, 40]" in message
    assert "[128, 128]" in message


@pytest.mark.parametrize("value", [[128], [128, 0], "128", [128, 128.0]])
def test_a_block_size_that_is_none_is_refused(value: Any, tmp_path: Path):
    parts = {"weight": numbers(16, 40), "weight_scale_inv": np.ones((2, 2), np.float32)}
    with pytest.raises(InputError, match="weight_block_size"):
        opened(tmp_path, parts, CONFIG | {"weight_block_size": value})


@pytest.mark.parametrize(
    "extra", [{}, {"weight_scale": np.ones(1, np.float32), "weight_scale_inv": np.ones(1, np.float32)}]
)
def test_no_scale_and_two_are_refused(extra: dict[str, np.ndarray], tmp_path: Path):
    message = refusal(InputError, tmp_path, {"weight": numbers(16, 40), **extra})
    assert STEM in message
    assert "weight_scale and weight_scale_inv" in message or "weight_scale_inv and weight_scale" in message


def test_the_other_float8_is_refused_by_name(tmp_path: Path):
    parts = {"weight": numbers(16, 40).astype(ml_dtypes.float8_e5m2), "weight_scale": np.ones(1, np.float32)}
    message = refusal(UnsupportedError, tmp_path, parts)
    assert "float8_e5m2" in message
    assert NAME in message
