"""Parity with transformers over sizes that no published model has: odd widths, few heads, every layer linear. Of the
reference executor, and of the CPU's in exact mode on every code path."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bundles import SMALL, build_bundle
from checkpoints import random_checkpoint
from executors import EXACT, REFERENCE
from oracle import dequantized_state, transformers_model
from qpack_runtime.engine import Engine
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.bundle import open_bundle

CUTS, LENGTH = (16, 5, 29), 60


@st.composite
def models(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    family = draw(st.sampled_from(["qwen2", "qwen3", "qwen3_5"]))
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4]))
    sizes: dict[str, Any] = {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": draw(st.sampled_from([64, 96, 200, 320])),
        "intermediate_size": draw(st.sampled_from([100, 256, 333])),
        "vocab_size": draw(st.sampled_from([512, 513, 1000])),
        "num_hidden_layers": draw(st.integers(1, 5)),
        "initializer_range": 0.1,
        "tied": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["bfloat16", "float16", "float32"])),
        "rope_parameters": {"rope_type": "default", "rope_theta": draw(st.sampled_from([1e4, 1e6, 1e7]))},
    }
    if family == "qwen2":
        return family, sizes | {"hidden_size": heads * draw(st.sampled_from([16, 32, 64]))}
    sizes |= {"head_dim": draw(st.sampled_from([16, 32, 64, 128])), "attention_bias": draw(st.booleans())}
    if family == "qwen3_5":
        key_heads = draw(st.integers(1, 3))
        sizes |= {
            "linear_num_key_heads": key_heads,
            "linear_num_value_heads": key_heads * draw(st.integers(1, 3)),
            "linear_key_head_dim": draw(st.sampled_from([16, 32, 64])),
            "linear_value_head_dim": draw(st.sampled_from([16, 32, 48])),
            "linear_conv_kernel_dim": draw(st.integers(2, 4)),
        }
        sizes["rope_parameters"]["partial_rotary_factor"] = draw(st.sampled_from([0.25, 0.5, 1.0]))
        if draw(st.booleans()):
            sizes["layer_types"] = ["linear_attention"] * sizes["num_hidden_layers"]
    return family, sizes


@pytest.mark.nightly
@settings(max_examples=60)
@given(models(), st.sampled_from(["int8", "int4", "bf16"]), st.sampled_from(["int8", "bf16"]), st.integers(0, 100))
def test_logits_equal_transformers_whatever_the_sizes(
    model: tuple[str, dict[str, Any]], head: str, embedding: str, seed: int
):
    family, sizes = model
    options = replace(SMALL, dtype="float32", lm_head=head, embedding=embedding)
    ids = np.random.default_rng(seed).integers(0, 512, LENGTH).tolist()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = random_checkpoint(Path(folder) / "model", family, seed=seed, **sizes)
        bundle = open_bundle(build_bundle(checkpoint, Path(folder) / "bundle", options))
        oracle = transformers_model(checkpoint, dequantized_state(bundle, checkpoint))
        executors = {kind: kind.make(bundle) for kind in (REFERENCE, *EXACT)}
    with torch.no_grad():
        wanted = oracle(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    for kind, executor in executors.items():
        engine, start = Engine(executor, bundle.manifest), 0
        engine.admit(1, SamplingOptions())
        for length in CUTS:
            engine.prefill_chunk(1, start, ids[start : start + length])
            start += length
        for position in range(start, LENGTH):
            executor.state("slot_token")[1] = ids[position]
            engine.decode([1])
            got = executor.io("decode-b1-c64")["logits"][0][: wanted.shape[1]]
            assert np.abs(got - wanted[position]).max() < 1e-4 * np.abs(wanted[position]).max(), kind
