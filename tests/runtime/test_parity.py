"""The reference executor computes what transformers computes on the same dequantized weights."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bundles import ASSETS, build_bundle
from checkpoints import published_form, random_checkpoint
from oracle import dequantized_state, transformers_model
from qpack_packager.serving import Options
from qpack_runtime.boot import Booted, boot
from qpack_runtime.generate import generate

FLOAT32 = Options(batches=(1, 4), contexts=(128, 256), prefills=(1, 16, 64), slots=4, dtype="float32")
TOLERANCE = 1e-4  # of the largest logit of a row
PROMPT = "And the king said unto the people of the land, Hear ye the word of the prophet, and let every man go"

# The random models have odd sizes on purpose: padding of K and N, several value heads per key head, biases, both heads.
# Between them head and embedding are tied and not, and have every form.
CHECKPOINTS = {
    "trained qwen3": lambda folder: ASSETS / "tiny-qwen3",
    "trained qwen3_5": lambda folder: ASSETS / "tiny-qwen3_5",
    "published qwen3_5": lambda folder: published_form(ASSETS / "tiny-qwen3_5", folder),
    "random qwen2": lambda folder: random_checkpoint(
        folder, "qwen2", tied=False, hidden_size=192, intermediate_size=200, num_attention_heads=6, vocab_size=520,
        initializer_range=0.1,
    ),
    "random qwen3 with biases": lambda folder: random_checkpoint(
        folder, "qwen3", attention_bias=True, head_dim=48, initializer_range=0.1
    ),
    "random qwen3_5": lambda folder: random_checkpoint(
        folder, "qwen3_5", tied=False, hidden_size=160, vocab_size=600, linear_num_key_heads=1,
        linear_conv_kernel_dim=3, attention_bias=True, initializer_range=0.1,
    ),
}  # fmt: skip
FORMS = {  # --lm-head, --embedding
    "trained qwen3": ("int8", "int8"),
    "trained qwen3_5": ("int4", "bf16"),
    "published qwen3_5": ("bf16", "bf16"),
    "random qwen2": ("int8", "int8"),
    "random qwen3 with biases": ("bf16", "int8"),
    "random qwen3_5": ("int4", "int8"),
}


@dataclass(frozen=True)
class Pair:
    checkpoint: Path
    bundle: Path
    model: Any  # of transformers

    def logits(self, tokens: list[int]) -> np.ndarray:
        """transformers' logits [T, vocab] of a whole sequence."""
        with torch.no_grad():
            return self.model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


@pytest.fixture(scope="module", params=list(CHECKPOINTS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("parity")
    checkpoint = CHECKPOINTS[request.param](folder / "model")
    head, embedding = FORMS[request.param]
    bundle = build_bundle(checkpoint, folder / "bundle", replace(FLOAT32, lm_head=head, embedding=embedding))
    model = transformers_model(checkpoint, dequantized_state(boot(bundle).bundle, checkpoint))
    return Pair(checkpoint, bundle, model)


def text_ids(booted: Booted, count: int) -> list[int]:
    text = (ASSETS / "tiny-qwen3" / "eval.txt").read_text(encoding="utf-8")
    return booted.tokenizer.encode(text[: 8 * count]).ids[:count]


def assert_close(got: np.ndarray, wanted: np.ndarray) -> None:
    difference = np.abs(got[..., : wanted.shape[-1]] - wanted).max(-1)
    np.testing.assert_array_less(difference, TOLERANCE * np.abs(wanted).max(-1))


def test_chunked_and_padded_prefill_equals_transformers_at_several_positions(pair: Pair):
    booted = boot(pair.bundle)
    ids = text_ids(booted, 150)
    wanted, start = pair.logits(ids), 0
    for length in (16, 5, 64, 1, 33, 31):
        booted.engine.prefill_chunk(2, start, ids[start : start + length])
        start += length
        bucket = max(booted.engine.runs, key=lambda name: booted.engine.runs[name])
        booted.engine.runs.clear()
        assert_close(booted.executor.io(bucket)["logits"][0], wanted[start - 1])


def test_decode_of_slots_at_different_positions_equals_transformers(pair: Pair):
    booted = boot(pair.bundle)
    ids = text_ids(booted, 200)
    texts, lengths = {0: ids[:120], 1: ids[40:120], 3: ids[100:]}, {0: 70, 1: 5, 3: 33}
    wanted = {slot: pair.logits(text) for slot, text in texts.items()}
    for slot, length in lengths.items():
        booted.engine.prefill(slot, texts[slot][:length])
    slot_token = booted.executor.state("slot_token")
    for step in range(24):
        order = [3, 0, 1] if step % 2 else [0, 1, 3]
        for slot in order:
            slot_token[slot] = texts[slot][lengths[slot] + step]
        booted.engine.decode(order)  # three rows in a bucket of four
        context = 128 if lengths[0] + step < 128 else 256
        logits = booted.executor.io(f"decode-b4-c{context}")["logits"]
        for row, slot in enumerate(order):
            assert_close(logits[row], wanted[slot][lengths[slot] + step])


def test_64_greedy_tokens_equal_transformers(pair: Pair):
    booted = boot(pair.bundle)
    prompt = booted.tokenizer.encode(PROMPT).ids
    booted.bundle.manifest["model"]["eos_token_ids"] = []  # decode on, whatever the model says
    generation = list(generate(booted, prompt, max_tokens=64))[-1]
    tensor, padded = torch.tensor([prompt]), range(booted.engine.vocab, booted.bundle.manifest["model"]["vocab_size"])
    settings: dict[str, Any] = {
        "max_new_tokens": 64,
        "do_sample": False,
        "eos_token_id": None,
        "attention_mask": torch.ones_like(tensor),
        "suppress_tokens": list(padded) or None,  # ids beyond the tokenizer's exist there and are never sampled here
    }
    wanted = pair.model.generate(tensor, **settings)[0, len(prompt) :].tolist()
    assert generation.output_ids == wanted
