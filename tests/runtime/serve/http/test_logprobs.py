"""Log-probabilities in both shapes, against the log-softmax of the reference executor's own logits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from executors import host_executor
from qpack_runtime.boot import Booted, boot
from qpack_runtime.sampling_options import SamplingOptions
from server_process import ServerProcess

MODEL = "tiny-qwen3_5"
PROMPT = "And the LORD said unto"
MESSAGES: Any = [{"role": "user", "content": "Who art thou?"}]
CHAT_PROMPT = "<|im_start|>user\nWho art thou?<|im_end|>\n<|im_start|>assistant\n"
TOKENS, SEED = 12, 4
END, MOST = 511, 20
OPTIONS = {"temperature": 1.7, "presence_penalty": 1.0, "logit_bias": {END: -100, 40: 3}}  # none is in the logits


@pytest.fixture(scope="module")
def reference(bundle: Path) -> Booted:
    return boot(bundle, "reference")


@pytest.fixture(scope="module")
def client(bundle: Path) -> Iterator[OpenAI]:
    with (
        ServerProcess(bundle, "--device", "reference") as server,
        OpenAI(base_url=f"http://127.0.0.1:{server.ready().port}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def tokenizer(bundle: Path) -> Tokenizer:
    return Tokenizer.from_file(str(bundle / "model/tokenizer.json"))


def scored(reference: Booted, prompt: str) -> list[tuple[int, np.ndarray]]:
    """The tokens of an answer, each with the log-probabilities of all ids at its place, float64 [vocab]."""
    engine, found = reference.engine, list[tuple[int, np.ndarray]]()
    ids = reference.tokenizer.encode(prompt).ids
    choice = engine.prefill(0, ids, SamplingOptions(seed=SEED, **OPTIONS))
    while True:
        io = host_executor(reference).io(engine.last_bucket)
        logits = io["logits"][0, : engine.vocab].astype(np.float64)
        found.append((choice.token, logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())))
        if len(found) == TOKENS:
            return found
        (choice,) = engine.decode([0])


def asked() -> dict[str, Any]:
    bias = {str(token): value for token, value in OPTIONS["logit_bias"].items()}
    return {"model": MODEL, "seed": SEED, "max_tokens": TOKENS, **OPTIONS, "logit_bias": bias}


def test_a_chat_tells_the_log_softmax_of_the_logits(client: OpenAI, reference: Booted, tokenizer: Tokenizer):
    answer = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=MOST, **asked())
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    expected = scored(reference, CHAT_PROMPT)
    for one, (token, values) in zip(logprobs.content, expected, strict=True):
        assert one.token == tokenizer.decode([token])
        assert bytes(one.bytes or ()) == one.token.encode("utf-8")
        assert one.logprob == pytest.approx(values[token], abs=1e-5)
        best = np.argsort(-values, kind="stable")[:MOST]
        assert [top.logprob for top in one.top_logprobs] == pytest.approx(values[best].tolist(), abs=1e-5)
        assert [top.token for top in one.top_logprobs] == [spelled(tokenizer, int(token)) for token in best]


def test_a_completion_tells_the_same_in_its_own_shape(client: OpenAI, reference: Booted, tokenizer: Tokenizer):
    answer = client.completions.create(prompt=PROMPT, logprobs=MOST, **asked())
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    expected = scored(reference, PROMPT)
    assert logprobs.tokens == [spelled(tokenizer, token) for token, _ in expected]
    assert logprobs.token_logprobs == pytest.approx([values[token] for token, values in expected], abs=1e-5)
    lengths = [len(token) for token in logprobs.tokens]
    assert logprobs.text_offset == [sum(lengths[:place]) for place in range(TOKENS)]
    assert choice.text == "".join(logprobs.tokens)
    for top, (_, values) in zip(logprobs.top_logprobs or (), expected, strict=True):
        best = np.argsort(-values, kind="stable")[:MOST]
        assert top == {spelled(tokenizer, int(token)): pytest.approx(values[token], abs=1e-5) for token in best}


def test_tokens_that_are_no_text_by_themselves_are_told_apart(client: OpenAI, tokenizer: Tokenizer):
    """Halves of characters as their bytes, special tokens by their names; an offset is one into the answer's text."""
    euro = tokenizer.encode("€").ids
    assert len(euro) == 3
    start = tokenizer.token_to_id("<|im_start|>")
    for forced, tokens, text, offsets in (
        (euro[0], [r"bytes:\xe2"] * 3, "", [0, 0, 0]),
        (start, ["<|im_start|>"] * 3, "", [0, 0, 0]),
        (tokenizer.token_to_id("a"), ["a"] * 3, "aaa", [0, 1, 2]),
    ):
        answer = client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=3, logprobs=1, temperature=0, logit_bias={str(forced): 100}
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert (logprobs.tokens, answer.choices[0].text, logprobs.text_offset) == (tokens, text, offsets)


def test_no_log_probabilities_without_asking_and_none_of_others_for_zero(client: OpenAI):
    bare = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2)
    assert bare.choices[0].logprobs is None
    none = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2, logprobs=True)
    assert none.choices[0].logprobs is not None
    assert [one.top_logprobs for one in none.choices[0].logprobs.content or ()] == [[], []]


def spelled(tokenizer: Tokenizer, token: int) -> str:
    """As the tokenizers library shows a token, special ones by name; what is no text as OpenAI writes its bytes."""
    text = tokenizer.decode([token], skip_special_tokens=False)
    if "\ufffd" not in text:
        return text
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    return "bytes:" + "".join(rf"\x{byte_of[character]:02x}" for character in tokenizer.id_to_token(token) or "")
