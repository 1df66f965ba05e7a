"""Exports in the GPTQ format, by its published formula, one weight at a time.

GPTQModel can't be installed for a test. That the formula below is what its PackableQuantLinear.dequantize_weight
computes, behind convert_gptq_v1_to_v2_format_module for version 1, was checked by hand with version 7.7.0 on whole
layers of each kind that is made here.
"""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import read_config
from qpack_packager.export.bundle_weights import BundleWeights
from qpack_packager.export.gptq import Gptq
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import UnsupportedError

from .conftest import CASES, Built
from .exports import exported, gptq_weight, made, read
from .made_bundles import int4_bundle

LAYER = "model.layers.0.mlp.down_proj"
INT4_LAYERS = [case for case in CASES if case != "int8 and dense layers"]


@pytest.mark.parametrize("case", INT4_LAYERS)
def test_each_weight_is_the_bundles(case: str, built: Callable[[str], Built]):
    """Some of every layer; numbers that are no codes are compared whole."""
    rng = np.random.default_rng(0)
    checkpoint = built(case).export("gptq")
    weights, tensors = BundleWeights(open_bundle(built(case).bundle)), read(checkpoint)
    packed = 0
    for weight in weights.weights:
        expected = weights.numbers(weight, 0, weight.shape[0])
        layer = weight.name.rpartition(".")[0]
        if weight.form == "dense" or f"{layer}.qweight" not in tensors:
            np.testing.assert_array_equal(tensors[weight.name].float().numpy(), expected.astype(np.float32))
            continue
        packed += 1
        assert tensors[f"{layer}.scales"].dtype == torch.bfloat16
        for n, k in rng.integers(0, weight.shape, (50, 2)):
            assert gptq_weight(tensors, layer, 1, n, k) == expected[n, k], (layer, n, k)
    assert packed == len([name for name in tensors if name.endswith(".qweight")]) >= 14


@given(
    seed=st.integers(0, 2**32 - 1), lines=st.integers(1, 20), groups=st.integers(1, 2), least=st.sampled_from([0, 1])
)
def test_any_zero_points_come_back(seed: int, lines: int, groups: int, least: int):
    """Version 1 of the format has no zero point 0: then it is version 2."""
    rng = np.random.default_rng(seed)
    n, k = 8 * lines, 128 * groups
    codes, zeros = rng.integers(0, 16, (n, k), np.uint8), rng.integers(least, 16, (n, groups), np.uint8)
    zeros.flat[0] = least
    scales = rng.standard_normal((n, groups)).astype(np.float16)
    with tempfile.TemporaryDirectory() as folder:
        weights = BundleWeights(int4_bundle(Path(folder), "w", [f"{LAYER}.weight"], codes, scales, zeros))
        export = Gptq(weights, weights.weights)
        config, tensors = export.quantization_config([]), made(export.entries(weights.weights[0]))
    assert (config["checkpoint_format"], config["sym"]) == ("gptq" if least else "gptq_v2", False)
    for line, column in [(0, 0), *rng.integers(0, (n, k), (20, 2))]:
        value = (int(codes[line, column]) - int(zeros[line, column // 128])) * float(scales[line, column // 128])
        assert gptq_weight(tensors, LAYER, 1 if least else 2, line, column) == value


def test_layers_that_are_not_packed_are_excluded_and_no_others(built: Callable[[str], Built]):
    """Also where an engine joins them: in_proj_b and in_proj_a become in_proj_ba."""
    checkpoint = built("multimodal").export("gptq")
    rules = read_config(checkpoint)["quantization_config"]["dynamic"]
    layers = {name.rpartition(".")[0] for name, tensor in read(checkpoint).items() if tensor.dim() == 2}
    excluded = {
        layer for layer in layers if any(re.match(rule.removeprefix("-:"), layer) for rule in rules)
    }  # as both GPTQModel and vLLM match them
    assert excluded == {f"model.layers.{i}.linear_attn.in_proj_{p}" for i in range(3) for p in "ab"}
    assert any(re.match(rule.removeprefix("-:"), "model.layers.1.linear_attn.in_proj_ba") for rule in rules)


def test_an_int4_head_is_packed_and_said_to_be(built: Callable[[str], Built]):
    checkpoint = built("int4 head, dense embedding").export("gptq")
    config = read_config(checkpoint)
    assert config["quantization_config"]["lm_head"] is True
    assert config["tie_word_embeddings"] is False
    assert {"lm_head.qweight", "model.embed_tokens.weight"} <= set(read(checkpoint))
    assert read_config(built("biases, untied").export("gptq"))["quantization_config"]["lm_head"] is False


def test_another_width_is_refused_with_the_format_that_has_it(built: Callable[[str], Built], tmp_path: Path):
    message = r"model.layers.0.self_attn.o_proj.weight: is int8, gptq has one .*\n.*--format compressed-tensors"
    with pytest.raises(UnsupportedError, match=message):
        exported(built("int8 and dense layers").bundle, tmp_path / "export", "gptq")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("shape", "zero", "message"),
    [
        ((60, 128), None, "has 60 lines, gptq packs their zero points in eights"),
        ((64, 200), None, "its lines have 200 weights: the last group would have 72"),
        ((64, 128), 16, "has the zero point 16, gptq has 0 to 15"),
    ],
)
def test_what_the_format_does_not_hold_is_refused(
    shape: tuple[int, int], zero: int | None, message: str, tmp_path: Path
):
    groups = (shape[0], -(-shape[1] // 128))
    zeros = None if zero is None else np.full(groups, zero, np.uint8)
    codes = np.zeros(shape, np.uint8)
    weights = BundleWeights(int4_bundle(tmp_path, "w", [f"{LAYER}.weight"], codes, np.ones(groups, np.float16), zeros))
    with pytest.raises(UnsupportedError, match=f"{LAYER}.weight: {message}"):
        Gptq(weights, weights.weights)
