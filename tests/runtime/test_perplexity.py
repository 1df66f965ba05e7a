"""int4 costs at most 2 % of perplexity on held-out text, against the checkpoint in bfloat16 under transformers. An int8
head and embedding add nothing that could be measured, an int4 head at most 1 %."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bundles import ASSETS, build_bundle
from oracle import transformers_model
from qpack_packager.serving import Options
from qpack_runtime.boot import Booted, boot

WINDOW, BATCH = 128, 8
OPTIONS = Options(batches=(BATCH,), contexts=(WINDOW,), prefills=(1,))


def log_likelihood(logits: np.ndarray, wanted: np.ndarray) -> float:
    """Sum over rows of log softmax(logits)[wanted], in float64."""
    logits = logits.astype(np.float64)
    peak = logits.max(-1, keepdims=True)
    log_sum = peak[:, 0] + np.log(np.exp(logits - peak).sum(-1))
    return float((logits[np.arange(len(wanted)), wanted] - log_sum).sum())


def bundle_perplexity(booted: Booted, windows: np.ndarray) -> float:
    """Eight windows at a time through the decode program, each row fed the text's own tokens."""
    executor, total = booted.executor, 0.0
    for batch in windows.reshape(-1, BATCH, WINDOW):
        booted.engine.positions[:] = [0] * BATCH
        executor.state("slot_position")[:] = 0
        for position in range(WINDOW - 1):
            executor.state("slot_token")[:BATCH] = batch[:, position]
            booted.engine.decode(range(BATCH))
            logits = executor.io(f"decode-b{BATCH}-c{WINDOW}")["logits"]
            total += log_likelihood(logits[:, : booted.engine.vocab], batch[:, position + 1])
    return math.exp(-total / (windows.size - len(windows)))


def transformers_perplexity(checkpoint: Path, windows: np.ndarray) -> float:
    model, total = transformers_model(checkpoint).to(torch.bfloat16), 0.0
    with torch.no_grad():
        for window in windows:
            logits = model(torch.from_numpy(window)[None], use_cache=False).logits[0, :-1].float().numpy()
            total += log_likelihood(logits, window[1:])
    return math.exp(-total / (windows.size - len(windows)))


def held_out_windows(booted: Booted, name: str, count: int) -> np.ndarray:
    """int64 [count, WINDOW]: ids of the text that the model was not trained on."""
    ids = booted.tokenizer.encode((ASSETS / name / "eval.txt").read_text(encoding="utf-8")).ids
    return np.array(ids[: len(ids) // WINDOW * WINDOW], np.int64).reshape(-1, WINDOW)[:count]


@pytest.mark.parametrize(("name", "published"), [("tiny-qwen3_5", 8.99), ("tiny-qwen3", 9.12)])
def test_int4_keeps_the_perplexity_of_held_out_text(name: str, published: float, tmp_path: Path):
    booted = boot(build_bundle(ASSETS / name, tmp_path / "bundle", OPTIONS))
    windows = held_out_windows(booted, name, 64)
    reference, ours = transformers_perplexity(ASSETS / name, windows), bundle_perplexity(booted, windows)
    print(f"{name}: bfloat16 under transformers {reference:.4f}, int4 bundle {ours:.4f}, ratio {ours / reference:.4f}")
    assert reference == pytest.approx(published, rel=0.01)  # what its training measured: the comparison is a fair one
    assert ours < 1.02 * reference


@pytest.mark.parametrize("name", ["tiny-qwen3_5", "tiny-qwen3"])
def test_a_quantized_head_and_embedding_keep_the_perplexity_of_the_dense_ones(name: str, tmp_path: Path):
    """int4 layers in all of them."""
    found: dict[tuple[str, str], float] = {}
    for head, embedding in (("bf16", "bf16"), ("int8", "int8"), ("int4", "int8")):
        options = replace(OPTIONS, lm_head=head, embedding=embedding)
        booted = boot(build_bundle(ASSETS / name, tmp_path / head, options))
        found[head, embedding] = bundle_perplexity(booted, held_out_windows(booted, name, 32))
    dense = found["bf16", "bf16"]
    print(f"{name}: " + ", ".join(f"{head}/{embedding} {p / dense:.5f}" for (head, embedding), p in found.items()))
    assert found["int8", "int8"] < 1.001 * dense
    assert found["int4", "int8"] < 1.01 * dense
