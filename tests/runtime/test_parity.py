"""The reference executor, and the CPU's in exact mode, compute what transformers computes on the same dequantized
weights."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bundles import ASSETS
from executors import EXACT, REFERENCE, host_executor
from models import MODELS, build_model
from oracle import dequantized_state, transformers_model
from qpack_packager.serving import Options
from qpack_runtime.boot import Booted
from qpack_runtime.generate import generate
from qpack_schemas.bundle import open_bundle

FLOAT32 = Options(batches=(1, 4), contexts=(128, 256), prefills=(1, 16, 64), slots=4, dtype="float32")
TOLERANCE = 1e-4  # of the largest logit of a row
PROMPT = "And the king said unto the people of the land, Hear ye the word of the prophet, and let every man go"


class Pair:
    """A bundle, and what transformers says of its weights: it is asked once for all executors."""

    def __init__(self, bundle: Path, model: Any):
        self.bundle, self._model = bundle, model
        self.logits = cache(self._logits)
        self.greedy = cache(self._greedy)

    def _logits(self, tokens: tuple[int, ...]) -> np.ndarray:
        """[T, vocab] of a whole sequence."""
        with torch.no_grad():
            return self._model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()

    def _greedy(self, prompt: tuple[int, ...], count: int, suppressed: tuple[int, ...]) -> list[int]:
        tensor = torch.tensor([prompt])
        settings: dict[str, Any] = {
            "max_new_tokens": count,
            "do_sample": False,
            "eos_token_id": None,
            "attention_mask": torch.ones_like(tensor),
            "suppress_tokens": list(suppressed) or None,
        }
        return self._model.generate(tensor, **settings)[0, len(prompt) :].tolist()


@pytest.fixture(scope="module", params=list(MODELS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    checkpoint, bundle = build_model(request.param, tmp_path_factory.mktemp("parity"), FLOAT32)
    return Pair(bundle, transformers_model(checkpoint, dequantized_state(open_bundle(bundle), checkpoint)))


@pytest.fixture(params=[REFERENCE, *EXACT], ids=str)
def booted(request: pytest.FixtureRequest, pair: Pair) -> Booted:
    return request.param.boot(pair.bundle)


def text_ids(booted: Booted, count: int) -> list[int]:
    text = (ASSETS / "tiny-qwen3" / "eval.txt").read_text(encoding="utf-8")
    return booted.tokenizer.encode(text[: 8 * count]).ids[:count]


def assert_close(got: np.ndarray, wanted: np.ndarray) -> None:
    difference = np.abs(got[..., : wanted.shape[-1]] - wanted).max(-1)
    np.testing.assert_array_less(difference, TOLERANCE * np.abs(wanted).max(-1))


def test_chunked_and_padded_prefill_equals_transformers_at_several_positions(pair: Pair, booted: Booted):
    ids = text_ids(booted, 150)
    wanted, start = pair.logits(tuple(ids)), 0
    for length in (16, 5, 64, 1, 33, 31):
        booted.engine.prefill_chunk(2, start, ids[start : start + length])
        start += length
        bucket = max(booted.engine.runs, key=lambda name: booted.engine.runs[name])
        booted.engine.runs.clear()
        assert_close(booted.executor.io(bucket)["logits"][0], wanted[start - 1])


def test_decode_of_slots_at_different_positions_equals_transformers(pair: Pair, booted: Booted):
    ids = text_ids(booted, 200)
    texts, lengths = {0: ids[:120], 1: ids[40:120], 3: ids[100:]}, {0: 70, 1: 5, 3: 33}
    wanted = {slot: pair.logits(tuple(text)) for slot, text in texts.items()}
    for slot, length in lengths.items():
        booted.engine.prefill(slot, texts[slot][:length])
    slot_token = host_executor(booted).state("slot_token")
    for step in range(24):
        order = [3, 0, 1] if step % 2 else [0, 1, 3]
        for slot in order:
            slot_token[slot] = texts[slot][lengths[slot] + step]
        booted.engine.decode(order)  # three rows in a bucket of four
        context = 128 if lengths[0] + step < 128 else 256
        logits = booted.executor.io(f"decode-b4-c{context}")["logits"]
        for row, slot in enumerate(order):
            assert_close(logits[row], wanted[slot][lengths[slot] + step])


def test_64_greedy_tokens_equal_transformers(pair: Pair, booted: Booted):
    prompt = booted.tokenizer.encode(PROMPT).ids
    booted.bundle.manifest["model"]["eos_token_ids"] = []  # decode on, whatever the model says
    generation = list(generate(booted, prompt, max_tokens=64))[-1]
    padded = range(booted.engine.vocab, booted.bundle.manifest["model"]["vocab_size"])  # there, but never sampled here
    assert generation.output_ids == pair.greedy(tuple(prompt), 64, tuple(padded))
