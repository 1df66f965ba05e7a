"""int4 costs at most 2 % of perplexity on held-out text, against the checkpoint in bfloat16 under transformers. An int8
head and embedding add nothing that could be measured, an int4 head less than 1 %."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bundles import ASSETS, build_bundle
from executors import FAST, REFERENCE
from oracle import transformers_model
from qpack_schemas.bundle import open_bundle
from teacher_forcing import OPTIONS, held_out_windows, log_likelihood, perplexity


def transformers_perplexity(checkpoint: Path, windows: np.ndarray) -> float:
    model, total = transformers_model(checkpoint).to(torch.bfloat16), 0.0
    with torch.no_grad():
        for window in windows:
            logits = model(torch.from_numpy(window)[None], use_cache=False).logits[0, :-1].float().numpy()
            total += log_likelihood(logits, window[1:])
    return math.exp(-total / (windows.size - len(windows)))


@pytest.mark.parametrize(("name", "published"), [("tiny-qwen3_5", 8.99), ("tiny-qwen3", 9.12)])
def test_int4_keeps_the_perplexity_of_held_out_text(name: str, published: float, tmp_path: Path):
    """By the reference, and by the CPU executor as it is without a wish."""
    bundle, windows = open_bundle(build_bundle(ASSETS / name, tmp_path / "bundle", OPTIONS)), held_out_windows(name, 64)
    bfloat16 = transformers_perplexity(ASSETS / name, windows)
    assert bfloat16 == pytest.approx(published, rel=0.01)  # what its training measured: the comparison is a fair one
    for kind in (REFERENCE, FAST[0]):
        ours = perplexity(kind.make(bundle), bundle, windows)
        print(f"{name}: bfloat16 under transformers {bfloat16:.4f}, int4 on {kind} {ours:.4f}, {ours / bfloat16:.4f}")
        assert ours < 1.02 * bfloat16


@pytest.mark.parametrize("name", ["tiny-qwen3_5", "tiny-qwen3"])
def test_a_quantized_head_and_embedding_keep_the_perplexity_of_the_dense_ones(name: str, tmp_path: Path):
    """int4 layers in all. On all windows of the text the ratios are 1.000 for int8, 1.005 and 1.007 for int4."""
    found: dict[tuple[str, str], float] = {}
    for head, embedding in (("bf16", "bf16"), ("int8", "int8"), ("int4", "int8")):
        options = replace(OPTIONS, lm_head=head, embedding=embedding)
        bundle = open_bundle(build_bundle(ASSETS / name, tmp_path / head, options))
        found[head, embedding] = perplexity(REFERENCE.make(bundle), bundle, held_out_windows(name, 32))
    dense = found["bf16", "bf16"]
    print(f"{name}: " + ", ".join(f"{head}/{embedding} {p / dense:.5f}" for (head, embedding), p in found.items()))
    assert found["int8", "int8"] < 1.001 * dense
    assert found["int4", "int8"] < 1.02 * dense  # of 32 windows: give or take 0.002
