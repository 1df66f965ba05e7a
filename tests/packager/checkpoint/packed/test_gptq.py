"""GPTQ checkpoints against one weight at a time, as AutoGPTQ and GPTQModel define it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import TINY_QWEN3, read_config, write_checkpoint
from packed_checkpoints import GPTQ_CONFIG, Int4, gptq
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.source_tensor import PackedTensor, as_packed
from qpack_schemas.errors import InputError, QpackError, UnsupportedError

STEM, NAME = "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.k_proj.weight"
V2 = {**GPTQ_CONFIG, "checkpoint_format": "gptq_v2"}


def random_weight(
    lines: int, groups: np.ndarray, *, zeros: Any = (1, 16), dtype: Any = np.float16, seed: int = 0
) -> Int4:
    """Any codes; zeros from a range (or all of one value), scales of both signs."""
    rng, count = np.random.default_rng(seed), int(groups.max()) + 1
    low, end = zeros if isinstance(zeros, tuple) else (zeros, zeros + 1)
    found = rng.integers(low, end, (lines, count))
    scales = (rng.normal(0, 0.02, (lines, count))).astype(dtype)
    return Int4(rng.integers(0, 16, (lines, len(groups)), np.uint8), found.astype(np.uint8), scales, groups)


def opened(
    folder: Path,
    parts: Mapping[str, np.ndarray | None],
    config: Mapping[str, Any] = GPTQ_CONFIG,
    more: Mapping[str, np.ndarray] | None = None,
) -> Checkpoint:
    held = {f"{STEM}.{part}": np.ascontiguousarray(one) for part, one in parts.items() if one is not None}
    whole = read_config(TINY_QWEN3) | {"quantization_config": dict(config)}
    return Checkpoint.open(ModelText(write_checkpoint(folder, whole, {**held, **(more or {})})))


def packed(checkpoint: Checkpoint) -> PackedTensor:
    tensor = as_packed(checkpoint.tensors[NAME])
    assert tensor is not None
    return tensor


def refusal(kind: type[QpackError], *arguments: Any) -> str:
    with pytest.raises(kind) as caught:
        _ = packed(opened(*arguments)).asymmetric
    assert caught.value.where
    assert caught.value.remedy
    return str(caught.value)


def assert_is(tensor: PackedTensor, weight: Int4) -> None:
    """Shape, values and codes, of all lines and of some that begin and end within a word."""
    lines, columns = weight.codes.shape
    assert (tensor.dtype, tensor.shape, tensor.scale_dtype) == ("int4", (lines, columns), weight.scales.dtype.name)
    firsts = weight.groups[::128]
    for first, last in ((0, lines), (3, lines - 2), (8, 9)):
        found, wanted = tensor.codes(first, last), slice(first, last)
        assert np.array_equal(tensor.lines(first, last), weight.values[wanted])
        assert np.array_equal(found.codes, weight.codes[wanted])
        assert np.array_equal(found.scales, weight.scales[wanted][:, firsts])
        if tensor.asymmetric:
            assert found.zeros is not None
            assert np.array_equal(found.zeros, weight.zeros[wanted][:, firsts])
        else:
            assert found.zeros is None


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("g_idx", [True, False])
@pytest.mark.parametrize(
    ("version", "zeros"), [(1, (1, 16)), (1, 1), (1, 15), (1, 8), (2, (0, 16)), (2, 0), (2, 15), (2, 8)]
)
def test_weights_are_as_stored(dtype: Any, g_idx: bool, version: int, zeros: Any, tmp_path: Path):
    weight = random_weight(24, np.arange(384) // 128, zeros=zeros, dtype=dtype)
    tensor = packed(opened(tmp_path, gptq(weight, version=version, g_idx=g_idx), GPTQ_CONFIG if version == 1 else V2))
    assert tensor.asymmetric == (zeros != 8)
    assert_is(tensor, weight)


@given(st.data())
def test_each_weight_is_the_published_formula(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    """weight[n, k] = scales[g, n] * (bits 4(k % 8) of qweight[k // 8, n] - bits 4(n % 8) of qzeros[g, n // 8] - 1),
    with g = g_idx[k], on words of any bits whose zeros are not 15."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    lines, columns = 8 * data.draw(st.integers(1, 3)), 8 * data.draw(st.integers(1, 40))
    count = -(-columns // 128)
    qweight = rng.integers(-(2**31), 2**31, (columns // 8, lines)).astype(np.int32)
    qzeros = np.array(
        [[sum(int(rng.integers(15)) << 4 * p for p in range(8)) for _ in range(lines // 8)] for _ in range(count)],
        np.uint32,
    ).view(np.int32)
    scales = rng.normal(0, 1, (count, lines)).astype(np.float16)
    parts = {"qweight": qweight, "qzeros": qzeros, "scales": scales}
    lines_found = packed(opened(tmp_path_factory.mktemp("gptq"), parts)).lines(0, lines)
    for n, k in zip(rng.integers(lines, size=20), rng.integers(columns, size=20), strict=True):
        g = k // 128
        code = int(qweight[k // 8, n]) % 2**32 // 16 ** (k % 8) % 16
        zero = int(qzeros[g, n // 8]) % 2**32 // 16 ** (n % 8) % 16 + 1
        assert lines_found[n, k] == np.float32(scales[g, n]) * (code - zero)


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        (np.arange(512) // 256, 256),
        (np.zeros(384, int), -1),
        (np.arange(200) // 128, 128),
        (np.repeat([0, 1], [128, 256]), 128),
        (np.repeat([2, 0, 1], 128), 128),
    ],
    ids=["twice as wide", "one a line", "a short last one", "of several sizes", "in another order"],
)  # fmt: skip
def test_groups_of_whole_128_columns_are_exact(groups: np.ndarray, size: int, tmp_path: Path):
    weight = random_weight(16, groups)
    assert_is(packed(opened(tmp_path, gptq(weight), {**GPTQ_CONFIG, "group_size": size})), weight)


@pytest.mark.parametrize(
    ("groups", "columns", "remedy"),
    [
        (np.arange(256) // 64, "columns 0 and 64 are in groups 0 and 1", "groups of 128"),
        (np.arange(256) // 32, "columns 0 and 32 are in groups 0 and 1", "groups of 128"),
        (np.arange(384) // 192, "columns 128 and 192 are in groups 0 and 1", "groups of 128"),
        (np.arange(256)[::-1] % 2, "columns 0 and 1 are in groups 1 and 0", "desc_act=False"),
    ],
)  # fmt: skip
def test_groups_that_part_128_columns_are_refused(groups: np.ndarray, columns: str, remedy: str, tmp_path: Path):
    message = refusal(UnsupportedError, tmp_path, gptq(random_weight(16, groups)), GPTQ_CONFIG | {"desc_act": True})
    assert columns in message
    assert remedy in message
    assert f"{STEM}.qweight" in message


def test_a_zero_whose_readers_disagree_is_refused(tmp_path: Path):
    weight = random_weight(16, np.arange(256) // 128)
    weight.zeros[11, 1] = 0  # stored as 15
    message = refusal(UnsupportedError, tmp_path, gptq(weight))
    assert "line 11, group 1 is stored as 15" in message
    assert f"{STEM}.qzeros" in message
    assert "gptq_v2" in message


def test_symmetric_in_config_and_asymmetric_in_tensors_is_refused_with_both_facts(tmp_path: Path):
    weight = random_weight(16, np.arange(256) // 128, zeros=8)
    weight.zeros[3, 1] = 7
    message = refusal(InputError, tmp_path, gptq(weight), {**GPTQ_CONFIG, "sym": True})
    assert "the zero of line 3, group 1 is 7" in message
    assert "config.json#/quantization_config/sym" in message


@pytest.mark.parametrize(
    ("changes", "named", "value"),
    [
        ({"bits": 8}, "/bits", "8"),
        ({"bits": 3}, "/bits", "3"),
        ({"checkpoint_format": "marlin"}, "/checkpoint_format", '"marlin"'),
        ({"checkpoint_format": "gptq_p"}, "/checkpoint_format", '"gptq_p"'),
        ({"rotation": "hadamard"}, "/rotation", '"hadamard"'),
    ],
)
def test_other_settings_are_refused_by_name(changes: dict[str, Any], named: str, value: str, tmp_path: Path):
    message = refusal(UnsupportedError, tmp_path, gptq(random_weight(16, np.arange(128) // 128)), GPTQ_CONFIG | changes)
    assert f"config.json#/quantization_config{named}" in message
    assert value in message


def test_8_bits_of_one_module_are_told_by_its_tensors(tmp_path: Path):
    parts = gptq(random_weight(16, np.arange(128) // 128))
    wide = {**parts, "qweight": np.tile(parts["qweight"], (2, 1)), "qzeros": np.tile(parts["qzeros"], (1, 2))}
    message = refusal(UnsupportedError, tmp_path, wide, GPTQ_CONFIG | {"dynamic": {"+:.*k_proj": {"bits": 8}}})
    assert "8 bits" in message
    assert STEM in message


@pytest.mark.parametrize("part", ["qzeros", "scales"])
def test_an_absent_part_is_named(part: str, tmp_path: Path):
    message = refusal(InputError, tmp_path, {**gptq(random_weight(16, np.arange(128) // 128)), part: None})
    assert f"without {part}" in message
    assert STEM in message


@pytest.mark.parametrize(
    ("part", "value", "found", "expected"),
    [
        ("qzeros", np.zeros((2, 2), np.int32), "[2, 2]", "[1, 2]"),
        ("scales", np.ones((1, 16), np.int32), "int32", "float16 or bfloat16"),
        ("g_idx", np.zeros(64, np.int32), "[64]", "[128]"),
        ("g_idx", np.full(128, 3, np.int32), "groups 3 to 3", "scales for 1"),
        ("g_idx", np.full(128, -1, np.int32), "groups -1 to -1", "scales for 1"),
    ],
)
def test_a_part_that_does_not_fit_is_named_with_both_values(
    part: str, value: np.ndarray, found: str, expected: str, tmp_path: Path
):
    message = refusal(InputError, tmp_path, {**gptq(random_weight(16, np.arange(128) // 128)), part: value})
    assert f"{STEM}.{part}" in message
    assert found in message
    assert expected in message


def test_another_group_size_in_config_is_refused_with_both_values(tmp_path: Path):
    parts = gptq(random_weight(16, np.arange(512) // 128), g_idx=False)
    message = refusal(InputError, tmp_path, parts, GPTQ_CONFIG | {"group_size": 256})
    assert "4 groups of 512 columns" in message
    assert "256" in message


def test_desc_act_without_the_groups_of_columns_is_refused(tmp_path: Path):
    parts = gptq(random_weight(16, np.arange(256) // 128), g_idx=False)
    message = refusal(InputError, tmp_path, parts, GPTQ_CONFIG | {"desc_act": True})
    assert "g_idx" in message
    assert "/desc_act" in message


def test_biases_of_zero_that_the_model_has_none_of_say_nothing(tmp_path: Path):
    """AutoGPTQ gave every linear one; vLLM passes over them."""
    parts = gptq(random_weight(16, np.arange(128) // 128))
    empty, full = np.zeros(16, np.float16), np.ones(16, np.float16)
    assert f"{STEM}.bias" not in opened(tmp_path / "empty", parts, more={f"{STEM}.bias": empty}).tensors
    assert f"{STEM}.bias" in opened(tmp_path / "full", parts, more={f"{STEM}.bias": full}).tensors


def test_a_weight_that_is_there_twice_is_refused(tmp_path: Path):
    parts = {**gptq(random_weight(16, np.arange(128) // 128)), "weight": np.zeros((16, 128), np.float16)}
    message = refusal(InputError, tmp_path, parts)
    assert NAME in message
    assert f"{STEM}.qweight" in message


def test_an_int4_embedding_is_refused(tmp_path: Path):
    embedding = {
        f"model.embed_tokens.{part}": np.ascontiguousarray(one)
        for part, one in gptq(random_weight(16, np.arange(128) // 128)).items()
    }
    with pytest.raises(UnsupportedError, match=r"model\.embed_tokens\.qweight: the embedding is int4 \(gptq\)"):
        opened(tmp_path, {}, more=embedding)
