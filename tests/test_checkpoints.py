"""The checkpoints that tests are made with are what transformers takes for such models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3_5ForConditionalGeneration

from checkpoints import TINY_QWEN3_5, published_form, random_checkpoint, read_tensors

TOKENS = torch.arange(2, 34)[None]


def logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits[0].numpy()


def test_the_published_form_is_the_same_model_to_transformers(tmp_path: Path):
    text = AutoModelForCausalLM.from_pretrained(TINY_QWEN3_5, dtype="float32")
    loaded: Any = Qwen3_5ForConditionalGeneration.from_pretrained(
        published_form(TINY_QWEN3_5, tmp_path), dtype="float32", output_loading_info=True
    )
    published, report = loaded
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    np.testing.assert_allclose(logits(published), logits(text), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_5"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_random_checkpoint_loads_whole_and_depends_on_the_seed_alone(tmp_path: Path, family: str, tied: bool):
    first, again, other = (
        random_checkpoint(tmp_path / str(i), family, tied=tied, seed=seed) for i, seed in enumerate((1, 1, 2))
    )
    loaded: Any = AutoModelForCausalLM.from_pretrained(first, output_loading_info=True)
    _, report = loaded
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tensors = read_tensors(first)
    assert ("lm_head.weight" in tensors) is not tied
    same, differing = read_tensors(again), read_tensors(other)
    assert same.keys() == tensors.keys() == differing.keys()
    for name, tensor in tensors.items():
        assert same[name].tobytes() == tensor.tobytes() != differing[name].tobytes()
