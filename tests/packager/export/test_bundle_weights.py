"""A bundle's weights as its checkpoint had them: each number against what the reference executor reads there."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle import EMBEDDING, HEAD, bundle_tensors, dequantized_state, transformers_model
from qpack_packager.export.bundle_weights import BundleWeights
from qpack_runtime.reference import int8
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import IntegrityError

from .conftest import CASES, Built
from .made_bundles import MODEL, int4_bundle


@pytest.mark.parametrize("case", CASES)
def test_every_number_is_the_one_that_the_reference_reads(case: str, built: Callable[[str], Built]):
    made = built(case)
    bundle = open_bundle(made.bundle)
    weights = BundleWeights(bundle)
    expected, stored = dequantized_state(bundle, made.checkpoint), bundle_tensors(bundle)
    for weight in weights.weights:
        if weight.form == "int8" and weight.name not in (EMBEDDING, HEAD):  # the oracle knows int8 of those two only
            lines = int8.dequantize(stored[f"{weight.module}.q"], stored[f"{weight.module}.scale"])
            expected[weight.name] = lines[: weight.shape[0], : weight.shape[1]]
        numbers = np.concatenate([weights.numbers(weight, *block) for block in weight.blocks()])
        np.testing.assert_array_equal(numbers.astype(np.float32), expected[weight.name], weight.name)


@pytest.mark.parametrize("case", CASES)
def test_the_weights_are_those_of_the_model(case: str, built: Callable[[str], Built]):
    """By name and shape, as transformers has them; of a tied head that is no module of its own, none."""
    made = built(case)
    weights = BundleWeights(open_bundle(made.bundle)).weights
    model = {name: tuple(tensor.shape) for name, tensor in transformers_model(made.checkpoint).state_dict().items()}
    shapes = {weight.name: weight.shape for weight in weights}
    assert len(shapes) == len(weights)
    assert shapes == {name: shape for name, shape in model.items() if name != HEAD or HEAD in shapes}
    assert (HEAD in shapes) == (case not in ("tied, int8 both", "tied, dense both", "int8 and dense layers"))


@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1, 239), gated=st.booleans(), asymmetric=st.booleans())
def test_lines_are_the_same_however_they_are_cut(seed: int, cut: int, gated: bool, asymmetric: bool):
    rng = np.random.default_rng(seed)
    queries, keys = MODEL["attention_heads"] * MODEL["head_dim"], MODEL["kv_heads"] * MODEL["head_dim"]
    layer = "model.layers.0.self_attn"
    halves = [f"{layer}.q_proj.weight#query", f"{layer}.q_proj.weight#gate"] if gated else [f"{layer}.q_proj.weight"]
    sources = [halves[0], f"{layer}.k_proj.weight", f"{layer}.v_proj.weight", *halves[1:]]
    n = queries * len(halves) + 2 * keys
    codes = rng.integers(0, 16, (n, 200), dtype=np.uint8)
    scales = rng.standard_normal((n, 2)).astype(np.float16)
    zeros = rng.integers(0, 17, (n, 2), dtype=np.uint8) if asymmetric else np.full((n, 2), 8, np.uint8)
    value = (codes - np.repeat(zeros, 128, 1)[:, :200].astype(float)) * np.repeat(scales, 128, 1)[:, :200]
    with tempfile.TemporaryDirectory() as folder:
        stored = zeros if asymmetric else None
        weights = BundleWeights(int4_bundle(Path(folder), "layers.0.attn.qkv", sources, codes, scales, stored))
        q, k, v = weights.weights
        for weight, lines in ((k, value[queries : queries + keys]), (v, value[queries + keys : queries + 2 * keys])):
            np.testing.assert_array_equal(weights.numbers(weight, 0, keys), lines)
        whole = weights.numbers(q, 0, q.shape[0])
        for head in range(MODEL["attention_heads"]):
            size = MODEL["head_dim"]
            own = slice(head * size, (head + 1) * size)
            lines = np.concatenate([value[own], value[queries + 2 * keys :][own]]) if gated else value[own]
            np.testing.assert_array_equal(whole[head * len(lines) : (head + 1) * len(lines)], lines)
        place = cut % q.shape[0]
        parts = [weights.numbers(q, *ends) for ends in ((0, place), (place, q.shape[0])) if ends[0] < ends[1]]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_sources_that_do_not_add_up_are_damage(tmp_path: Path):
    sources = ["model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.down_proj.weight"]
    codes, scales = np.zeros((144, 128), np.uint8), np.ones((144, 1), np.float16)
    with pytest.raises(IntegrityError, match=r"has 144 lines, its sources .*gate_proj.* give 72"):
        BundleWeights(int4_bundle(tmp_path, "layers.0.mlp.gate_up", sources, codes, scales, None))
