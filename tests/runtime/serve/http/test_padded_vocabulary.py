"""Ids between the tokenizer's vocabulary and the model's, which only pad it: never chosen, never taken."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from bundles import build_bundle
from checkpoints import TINY_QWEN3_5, read_config, read_tensors, write_checkpoint
from runtime.serve.http.conftest import Alone
from server_process import ServerProcess

COMPLETIONS = "/v1/completions"
PROMPT = "And the LORD said unto"
VOCAB = 512


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The tiny model with rows in its head that no token of the tokenizer has, as likely as the likeliest real ones."""
    folder = tmp_path_factory.mktemp("padded")
    tensors = dict(read_tensors(TINY_QWEN3_5))
    name = "model.embed_tokens.weight"
    assert len(tensors[name]) == VOCAB
    tensors[name] = np.concatenate([tensors[name], tensors[name][:64]])
    config = read_config(TINY_QWEN3_5) | {"vocab_size": VOCAB + 64}
    checkpoint = write_checkpoint(folder / "model", config, tensors, tokenizer=TINY_QWEN3_5)
    with ServerProcess(build_bundle(checkpoint, folder / "bundle")) as server:
        yield server.ready()
        assert server.complaints() == []


def test_an_id_that_only_pads_the_vocabulary_is_never_chosen(padded: ServerProcess, alone: Alone):
    """pegainfer#676, pegainfer#680: a sampled id that the tokenizer doesn't have failed the whole request. Here each is
    as likely as a real one, and answers are what they are without them."""
    asked = {"prompt": PROMPT, "temperature": 2, "n": 4, "seed": 0, "max_tokens": 60, "logprobs": 20}
    choices = padded.get(COMPLETIONS, asked)[1]["choices"]
    expected = [alone(PROMPT, 60, temperature=2, seed=seed) for seed in range(4)]
    assert [choice["text"] for choice in choices] == [generation.text for generation in expected]
    for choice in choices:
        assert all(len(top) == 20 and "" not in top for top in choice["logprobs"]["top_logprobs"])
    greedy = padded.get(COMPLETIONS, {"prompt": PROMPT, "temperature": 0, "max_tokens": 60})[1]["choices"][0]
    assert greedy["text"] == alone(PROMPT, 60, temperature=0.0).text


@pytest.mark.parametrize("token", [VOCAB, VOCAB + 63, VOCAB + 64, 10**6])
def test_an_id_that_only_pads_the_vocabulary_is_refused(padded: ServerProcess, token: int):
    for path, body in (
        (COMPLETIONS, {"prompt": PROMPT, "logit_bias": {str(token): 100}}),
        (COMPLETIONS, {"prompt": [1, token]}),
        (COMPLETIONS, {"prompt": [1, token], "echo": True, "max_tokens": 0}),
        ("/detokenize", {"tokens": [1, token]}),
    ):
        status, answer, _ = padded.get(path, body)
        assert status == 400
        assert str(token) in answer["error"]["message"]
        assert "from 0 to 511" in answer["error"]["message"]


def test_a_grammar_never_allows_an_id_that_only_pads_the_vocabulary(padded: ServerProcess):
    """mlx-vlm#1917: the grammar's own mask ended before the logits did."""
    schema = {"enum": ["yes", "no", 12, None]}
    response_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"prompt": PROMPT, "temperature": 2, "n": 8, "max_tokens": 60, "response_format": response_format}
    choices = padded.get(COMPLETIONS, body)[1]["choices"]
    assert all(json.loads(choice["text"]) in schema["enum"] for choice in choices)
