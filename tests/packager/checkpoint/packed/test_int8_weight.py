"""compressed-tensors' codes of 8 bits against the library that packs them, and against the formula."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import TINY_QWEN3, TINY_QWEN3_5, read_config, write_checkpoint
from compressed_checkpoints import compressed_checkpoint
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.packed import int8_weight
from qpack_packager.checkpoint.packed.int8_weight import Int8Weight, by_bytes
from qpack_schemas.errors import InputError, QpackError, UnsupportedError

STEM, NAME = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj.weight"
GROUPS: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 64, "symmetric": False}


def parts(lines: int = 10, columns: int = 128, count: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """Words of any bits."""
    rng = np.random.default_rng(seed)
    return {
        "weight_packed": rng.integers(-(2**31), 2**31, (lines, -(-columns // 4))).astype(np.int32),
        "weight_zero_point": rng.integers(-(2**31), 2**31, (-(-lines // 4), count)).astype(np.int32),
        "weight_scale": rng.normal(0, 1, (lines, count)).astype(np.float16),
        "weight_shape": np.array([lines, columns], np.int64),
    }


def opened(folder: Path, tensors: dict[str, np.ndarray], **changes: Any) -> Int8Weight:
    held = {f"{STEM}.{part}": np.ascontiguousarray(one) for part, one in tensors.items()}
    groups = {"group_0": {"targets": ["Linear"], "weights": {**GROUPS, **changes}}}
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    whole = {**read_config(TINY_QWEN3), "quantization_config": settings}
    tensor = Checkpoint.open(ModelText(write_checkpoint(folder, whole, held))).tensors[NAME]
    assert isinstance(tensor, Int8Weight)
    return tensor


def refusal(kind: type[QpackError], *arguments: Any, **changes: Any) -> str:
    with pytest.raises(kind) as caught:
        opened(*arguments, **changes).lines(4, 8)
    assert caught.value.where
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize("source", [TINY_QWEN3, TINY_QWEN3_5])
@pytest.mark.parametrize(
    ("dtype", "weights"),
    [
        (torch.bfloat16, {"strategy": "group", "group_size": 128, "symmetric": True}),
        (torch.float16, {"strategy": "group", "group_size": 64, "symmetric": False}),
        (torch.float16, {"strategy": "channel", "symmetric": True}),
        (torch.bfloat16, {"strategy": "channel", "symmetric": False}),
        (torch.bfloat16, {"strategy": "tensor", "symmetric": False}),
    ],
)
def test_a_whole_checkpoint_is_read_as_the_library_decompresses_it(
    source: Path, dtype: torch.dtype, weights: dict[str, Any], tmp_path: Path
):
    path, wanted = compressed_checkpoint(tmp_path, source, dtype=dtype, num_bits=8, type="int", **weights)
    checkpoint = Checkpoint.open(ModelText(path))
    assert len(wanted) >= 24
    for name, lines in wanted.items():
        tensor = checkpoint.tensors[name]
        assert (tensor.dtype, tensor.shape) == ("float32", lines.shape)
        assert tensor.lines(0, len(lines)).tobytes() == lines.tobytes()


@given(lines=st.integers(1, 9), columns=st.integers(9, 130), seed=st.integers(0, 2**32), data=st.data())
def test_any_words_are_what_the_library_unpacks(
    tmp_path_factory: pytest.TempPathFactory, lines: int, columns: int, seed: int, data: st.DataObject
):
    """Also lines that begin and end within a word of zeros, and columns that fill no word."""
    count = -(-columns // 64)
    tensors = parts(lines, columns, count, seed)
    codes = unpack_from_int32(torch.from_numpy(tensors["weight_packed"]), 8, torch.Size([lines, columns])).numpy()
    packed = torch.from_numpy(tensors["weight_zero_point"])
    zeros = unpack_from_int32(packed, 8, torch.Size([lines, count]), packed_dim=0).numpy()
    steps = codes.astype(np.float64) - np.repeat(zeros, 64, axis=1)[:, :columns]
    wanted = steps * np.repeat(tensors["weight_scale"].astype(np.float64), 64, axis=1)[:, :columns]
    first = data.draw(st.integers(0, lines - 1))
    last = data.draw(st.integers(first + 1, lines))
    found = opened(tmp_path_factory.mktemp("int8"), tensors).lines(first, last)
    assert found.dtype == np.float32
    assert np.array_equal(found.astype(np.float64), wanted[first:last])


@pytest.mark.parametrize("wrong", ["_SHIFTS", "by_shifts", "by_bytes"])
def test_a_wrong_order_is_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tensor = opened(tmp_path, parts())
    value = int8_weight._SHIFTS[::-1] if wrong == "_SHIFTS" else lambda words: by_bytes(words)[:, ::-1]  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(int8_weight, wrong, value)
    with pytest.raises(InputError, match=r"as codes, weight \[4, \d+\] is .*; compressed-tensors makes it .* differ"):
        tensor.lines(4, 8)


def test_zeros_that_config_denies_are_refused_with_both_facts(tmp_path: Path):
    tensors = parts()
    message = refusal(InputError, tmp_path, tensors, symmetric=True)
    assert f"{STEM}.weight_zero_point" in message
    assert "the zero of line 4, group 0" in message
    assert "/config_groups says that the weights are symmetric, which makes it 128" in message
    zeros = pack_to_int32(torch.zeros(10, 2, dtype=torch.int8), 8, packed_dim=0).numpy()
    assert opened(tmp_path, tensors | {"weight_zero_point": zeros}, symmetric=True).lines(0, 10).any()


def test_zeros_that_config_promises_are_missed(tmp_path: Path):
    tensors = parts()
    del tensors["weight_zero_point"]
    assert "all int8 weights are asymmetric" in refusal(InputError, tmp_path, tensors)


def test_codes_of_a_width_that_config_does_not_describe_are_refused_with_both(tmp_path: Path):
    message = refusal(InputError, tmp_path, parts(), num_bits=4)
    assert f"{STEM}.weight_packed" in message
    assert "8 bits for each of 128 columns" in message
    assert "config_groups describes no integers of so many" in message


def test_float32_scales_are_refused_with_a_remedy_that_helps(tmp_path: Path):
    tensors = parts()
    message = refusal(
        UnsupportedError, tmp_path, tensors | {"weight_scale": tensors["weight_scale"].astype(np.float32)}
    )
    assert f"{STEM}.weight_scale: is float32" in message
    assert "bfloat16 or float16" in message
