"""OpenAI's own client against the server: what it gets is what the bundle says when it is asked without a server."""

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI, RateLimitError

from qpack_runtime.boot import Booted
from runtime.serve.http.conftest import Alone
from server_process import SLOW_STEPS, ServerProcess

MODEL = "tiny-qwen3_5"
PROMPT = "And the LORD said unto"
MESSAGES: Any = [{"role": "system", "content": "Speak."}, {"role": "user", "content": "Who art thou?"}]
# As the checkpoint's template spells them.
CHAT = "<|im_start|>system\nSpeak.<|im_end|>\n<|im_start|>user\nWho art thou?<|im_end|>\n<|im_start|>assistant\n"
END = 511
BIAS = {str(END): -100}  # an answer that goes on to its limit


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"seed": 7},
        {"seed": 2**63 - 1, "temperature": 2},
        {"seed": 7, "top_p": 0.5},
        {"seed": 7, "top_k": 5},
        {"seed": 7, "min_p": 0.2},
        {"seed": 7, "presence_penalty": 1.5},
        {"seed": 7, "frequency_penalty": -1.0},
        {"seed": 7, "repetition_penalty": 1.8},
        {"seed": 7, "logit_bias": {END: -100, 13: 5, 0: -3.5}},
        {"seed": 7, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "top_p": 1, "min_p": 0},
    ],
    ids=str,
)
def test_an_answer_is_what_the_bundle_says_without_a_server(client: OpenAI, alone: Alone, options: dict[str, Any]):
    ours = {name: value for name, value in options.items() if name in ("top_k", "min_p", "repetition_penalty")}
    theirs: Any = {name: value for name, value in options.items() if name not in ours}
    if "logit_bias" in theirs:
        theirs["logit_bias"] = {str(token): bias for token, bias in theirs["logit_bias"].items()}
    expected = alone(PROMPT, 40, **options)
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=40, extra_body=ours, **theirs)
    assert answer.choices[0].text == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(expected.output_ids)
    assert answer.usage.prompt_tokens == len(expected.prompt_ids)
    expected = alone(CHAT, 40, **options)
    chat = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=40, extra_body=ours, **theirs
    )
    assert chat.choices[0].message.content == expected.text
    assert chat.choices[0].finish_reason == expected.finish_reason
    assert chat.usage is not None
    assert chat.usage.completion_tokens == len(expected.output_ids)
    assert chat.usage.prompt_tokens == len(expected.prompt_ids)


def test_a_prompt_may_be_token_ids_or_several(client: OpenAI, alone: Alone, booted: Booted):
    ids = booted.tokenizer.encode(PROMPT).ids
    prompts: list[Any] = [ids, [PROMPT, "In the beginning"], [ids, ids[:2]]]
    for prompt in prompts:
        answer = client.completions.create(model=MODEL, prompt=prompt, seed=3, max_tokens=10)
        ones = [prompt] if isinstance(prompt[0], int) else prompt
        assert [choice.text for choice in answer.choices] == [alone(one, 10, seed=3).text for one in ones]
        assert [choice.index for choice in answer.choices] == list(range(len(ones)))


def test_several_clients_at_once_get_what_each_gets_alone(server: ServerProcess, alone: Alone):
    async def ask() -> list[str | None]:
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
            asked = [
                client.chat.completions.create(model=MODEL, messages=MESSAGES, seed=seed, max_tokens=30)
                for seed in range(12)
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [alone(CHAT, 30, seed=seed).text for seed in range(12)]


def test_the_seed_that_an_answer_names_gives_it_again(client: OpenAI):
    first = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=30)
    other = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=30)
    seed = first.model_extra["seed"]  # pyright: ignore[reportOptionalSubscript]
    again = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=30, seed=seed)
    assert again.choices[0].text == first.choices[0].text != other.choices[0].text
    assert again.system_fingerprint == first.system_fingerprint
    assert again.id != first.id


@pytest.mark.parametrize("seed", [5, -1])
def test_several_answers_to_one_prompt_have_seeds_that_follow_each_other(client: OpenAI, alone: Alone, seed: int):
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, seed=seed, n=5, max_tokens=20)
    expected = [alone(CHAT, 20, seed=(seed + index) % 2**64) for index in range(5)]
    assert [choice.message.content for choice in answer.choices] == [generation.text for generation in expected]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected[0].prompt_ids)
    assert answer.usage.completion_tokens == sum(len(generation.output_ids) for generation in expected)


def test_an_answer_ends_before_a_stop_string_wherever_tokens_are_cut(client: OpenAI, alone: Alone, booted: Booted):
    whole = alone(PROMPT, 40, seed=11)
    cuts, length = list[int](), 0
    for token in whole.output_ids:
        cuts.append(length := length + len(booted.token_bytes[token].decode("ascii")))
    for cut in cuts[2:8]:
        stop = whole.text[cut - 1 : cut + 1]  # the end of one token and the beginning of the next
        answer = client.completions.create(
            model=MODEL, prompt=PROMPT, seed=11, max_tokens=40, stop=["never so", stop, "\u2603"]
        )
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (whole.text.partition(stop)[0], "stop")


def test_a_bias_forbids_a_token_and_forces_one(client: OpenAI, booted: Booted):
    token = booted.tokenizer.encode("king").ids[0]
    word = booted.token_bytes[token].decode("ascii")
    forced = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=5, logit_bias={str(token): 100})
    assert forced.choices[0].text == word * 5
    likely = booted.tokenizer.encode(client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=1, temperature=0).choices[0].text).ids[0]  # fmt: skip
    answers = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1, n=64, logit_bias={str(likely): -100})
    assert booted.token_bytes[likely].decode("ascii") not in {choice.text for choice in answers.choices}


def test_the_one_model_is_listed(client: OpenAI):
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert client.models.retrieve(MODEL) == models[0]
    with pytest.raises(NotFoundError, match="there is no model 'gpt-4'; this server has 'tiny-qwen3_5'"):
        client.models.retrieve("gpt-4")


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"temperature": 3}, BadRequestError, "temperature is 3, which is not supported; it takes a number from 0 to"),
        ({"model": "gpt-4"}, NotFoundError, "there is no model 'gpt-4'"),
        ({"logit_bias": {"512": 1}}, BadRequestError, "from 0 to 511"),
        ({"messages": [{"role": "user", "content": "amen " * 200}]}, BadRequestError, "the context 128"),
        ({"extra_body": {"top_q": 1}}, BadRequestError, "top_q is not a field that is known here"),
        ({"reasoning_effort": "high"}, BadRequestError, "reasoning_effort"),
    ],
)
def test_a_refusal_is_the_exception_that_its_status_means(client: OpenAI, fields: Any, kind: type, words: str):
    with pytest.raises(kind, match=words) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **fields})
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]


def test_a_client_that_finds_the_queue_full_tries_again_when_it_was_told_to(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    told: list[float] = []  # milliseconds
    slept: list[float] = []  # seconds
    sleep = time.sleep
    monkeypatch.setattr("openai._base_client.time.sleep", lambda seconds: slept.append(seconds) or sleep(seconds))

    def hear(response: httpx2.Response) -> None:
        if response.status_code == 429:
            told.append(float(response.headers["retry-after-ms"]))
            assert int(response.headers["retry-after"]) == math.ceil(told[-1] / 1000)

    with (
        ServerProcess(bundle, "--queue", "1", patch=SLOW_STEPS) as server,
        httpx2.Client(event_hooks={"response": [hear]}) as transport,
        OpenAI(base_url=f"http://127.0.0.1:{server.ready().port}/v1", api_key="none", http_client=transport) as client,
    ):
        # Four slots and a queue of one are taken.
        taken = iter(
            server.stream("/v1/completions", {"prompt": PROMPT, "n": 5, "max_tokens": 100, "logit_bias": BIAS})
        )
        next(taken)
        with pytest.raises(RateLimitError, match="the queue is full: 1 of 1 wait and 1 came") as caught:
            client.with_options(max_retries=0).completions.create(model=MODEL, prompt=PROMPT)
        assert (caught.value.type, caught.value.code, slept) == ("rate_limit_error", "queue_full", [])
        told.clear()
        client.with_options(max_retries=100).completions.create(model=MODEL, prompt=PROMPT)
        assert slept
        assert [1000 * seconds for seconds in slept] == pytest.approx(told)
        assert list(taken)[-1] == "[DONE]"
