"""Requests that brought other servers down or to wrong answers, each with the report that tells of it; and requests
that are made to, which are refused while another client's stream gets exactly its tokens."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from bundles import build_bundle
from checkpoints import TINY_QWEN3_5
from qpack_runtime.boot import Booted
from runtime.serve.http.conftest import Alone
from server_process import ServerProcess

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "And the LORD said unto"
MESSAGE = {"role": "user", "content": "a"}
END, VOCAB, CONTEXT = 511, 512, 128
# A template that is only hostile if it is asked to be.
HOSTILE = """
{%- set wish, ten = messages[0].content, 10 -%}
{%- if wish == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}
{%- elif wish == 'text' %}{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}
{%- elif wish == 'memory' %}{{ ('x' * ten ** ten) | length }}
{%- elif wish == 'number' %}{{ ten ** (ten ** ten) }}
{%- elif wish == 'recursion' %}{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}
{%- elif wish == 'refusal' %}{{ raise_exception('I will not') }}
{%- elif wish == 'escape' %}{{ ''.__class__.__mro__[1].__subclasses__() }}
{%- elif wish == 'type' %}{{ 1 + 'x' }}
{%- else %}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}{% endif %}
"""


def ask(prompt: Any = PROMPT, **fields: Any) -> bytes:
    return json.dumps({"prompt": prompt, **fields}).encode("ascii")


def wish(content: str, **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], **fields}).encode("ascii")


COUNTING = {"type": "string", "pattern": "^((a{0,999}){0,999}){0,999}$"}
CASES: dict[str, tuple[str, bytes, int, str]] = {
    "a huge body": (COMPLETIONS, ask("a" * (5 << 20)), 413, "at most 4194304 bytes"),
    "deep lists": (COMPLETIONS, b"[" * 10**6, 400, "nested too deeply"),
    "deep objects": (CHAT, b'{"a":' * 10**5 + b"1" + b"}" * 10**5, 400, "nested too deeply"),
    "a hundred thousand stop strings": (COMPLETIONS, ask(stop=["x"] * 10**5), 400, "1 to 16 items"),
    "a billion answers": (COMPLETIONS, ask(n=10**9), 400, "from 1 to 128"),
    "many answers to many prompts": (COMPLETIONS, ask(["a"] * 128, n=128), 400, "16384 sequences"),
    "more answers than fit at once": (COMPLETIONS, ask(n=100), 400, "at most 68 at once"),
    "a bias of an unknown id": (COMPLETIONS, ask(logit_bias={str(VOCAB): 1}), 400, "from 0 to 511"),
    "many biases": (CHAT, wish("a", logit_bias={str(token): 1 for token in range(10**5)}), 400, "at most 512"),
    "a number of many digits": (COMPLETIONS, b'{"prompt": "a", "seed": ' + b"9" * 10**6 + b"}", 400, "digits"),
    "an endless number": (COMPLETIONS, b'{"prompt": "a", "temperature": 1e999}', 400, "not a finite number"),
    "a long text": (COMPLETIONS, ask("amen " * 500_000), 400, "the context 128"),
    "a million ids": (COMPLETIONS, ask([1] * 10**6), 400, "1000000 tokens and the context 128"),
    "as many ids as the context": (COMPLETIONS, ask([1] * CONTEXT), 400, "128 tokens and the context 128"),
    "many messages": (CHAT, wish("a", messages=[MESSAGE] * 16_384), 400, "the context 128"),
    "too many messages": (CHAT, wish("a", messages=[MESSAGE] * 10**5), 400, "1 to 16384 items"),
    "half of a surrogate pair": (CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "surrogate"),
    "a pattern that counts": (
        CHAT,
        wish("a", response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": COUNTING}}),
        400,
        "structured output ended early",
    ),
    "a template that loops": (CHAT, wish("loop"), 400, "more than 4 s"),
    "a template that writes": (CHAT, wish("text"), 400, "more than 4000000 characters"),
    "a template that takes memory": (CHAT, wish("memory"), 400, "too much memory"),
    "a template that computes": (CHAT, wish("number"), 400, "more than 4 s"),
    "a template that calls itself": (CHAT, wish("recursion"), 400, "recursion"),
    "a template that refuses": (CHAT, wish("refusal"), 400, "I will not"),
    "a template that breaks out": (CHAT, wish("escape"), 400, "unsafe"),
    "a template that fails": (CHAT, wish("type"), 400, "the chat template refuses"),
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    checkpoint = shutil.copytree(TINY_QWEN3_5, folder / "model")
    (checkpoint / "chat_template.jinja").write_text(HOSTILE, encoding="utf-8")
    with ServerProcess(build_bundle(checkpoint, folder / "bundle")) as server:
        yield server.ready()
        assert server.complaints() == []


@pytest.mark.parametrize("case", CASES)
def test_a_bad_request_is_refused_and_a_stream_beside_it_gets_its_tokens(
    hostile: ServerProcess, alone: Alone, case: str
):
    path, data, status, words = CASES[case]
    asked = {"prompt": PROMPT, "seed": 6, "max_tokens": 60, "logit_bias": {str(END): -100}}
    expected = alone(PROMPT, 60, seed=6, logit_bias={END: -100}).text

    def refused() -> httpx2.Response:
        with httpx2.Client(base_url=f"http://127.0.0.1:{hostile.port}", timeout=None) as http:
            return http.post(path, content=data, headers={"content-type": "application/json"})

    with ThreadPoolExecutor(1) as pool:
        answer = None
        while answer is None or not answer.done():
            events = iter(hostile.stream(COMPLETIONS, asked))
            pieces = [next(events)]
            answer = answer or pool.submit(refused)
            *rest, done = events
            assert done == "[DONE]"
            assert "".join(json.loads(piece)["choices"][0]["text"] for piece in (*pieces, *rest)) == expected
        assert answer.result().status_code == status, answer.result().text
        error = answer.result().json()["error"]
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"
        assert len(error["message"]) < 1100


def test_a_template_is_of_use_again_after_a_bomb(hostile: ServerProcess):
    before = hostile.get(CHAT, {"messages": [{"role": "user", "content": "a"}], "seed": 1, "max_tokens": 5})
    for bomb in ("memory", "recursion"):
        assert hostile.get(CHAT, json.loads(wish(bomb)))[0] == 400
        after = hostile.get(CHAT, {"messages": [{"role": "user", "content": "a"}], "seed": 1, "max_tokens": 5})
        assert after[1]["choices"] == before[1]["choices"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT, "Woe"], "ids"], ids=str)
def test_an_echo_of_no_tokens_is_the_prompt(http: httpx2.Client, booted: Booted, prompt: Any, stream: bool):
    """vllm#39556: a token that nobody had asked for came with it, and was counted."""
    ids = booted.tokenizer.encode(PROMPT).ids
    texts = [PROMPT] if prompt == "ids" else [prompt] if isinstance(prompt, str) else prompt
    body = {"prompt": ids if prompt == "ids" else prompt, "echo": True, "max_tokens": 0, "stream": stream}
    answer = http.post(COMPLETIONS, json=body | ({"stream_options": {"include_usage": True}} if stream else {}))
    assert answer.status_code == 200
    if stream:
        *events, done = answer.text.split("\n\n")[:-1]
        assert done == "data: [DONE]"
        *chunks, last = [json.loads(event.removeprefix("data: ")) for event in events]
        choices, usage = [choice for chunk in chunks for choice in chunk["choices"]], last["usage"]
    else:
        choices, usage = answer.json()["choices"], answer.json()["usage"]
    for index, text in enumerate(texts):
        mine = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in mine) == text
        assert mine[-1]["finish_reason"] == "length"
    assert usage["completion_tokens"] == 0
    assert usage["prompt_tokens"] == usage["total_tokens"] == sum(len(booted.tokenizer.encode(t).ids) for t in texts)


def test_a_limit_that_is_null_is_as_if_it_were_not_there(http: httpx2.Client, alone: Alone):
    """vllm#19862: a status of 500."""
    asked = {"prompt": PROMPT, "seed": 2, "logit_bias": {str(END): -100}, "temperature": None, "stop": None}
    answer = http.post(COMPLETIONS, json=asked | {"max_tokens": None}).json()
    assert answer["choices"][0]["text"] == alone(PROMPT, 16, seed=2, logit_bias={END: -100}).text
    messages = [{"role": "user", "content": "a"}]
    chat = http.post(CHAT, json={"messages": messages, "max_tokens": None, "logit_bias": {str(END): -100}}).json()
    assert chat["usage"]["total_tokens"] == CONTEXT


def test_a_prompt_may_fill_all_of_the_context_but_one(http: httpx2.Client, booted: Booted, alone: Alone):
    """sglang#4048: neither the limit nor the length that the server meant was to be found."""
    for length, status in ((CONTEXT - 1, 200), (CONTEXT, 400)):
        answer = http.post(COMPLETIONS, json={"prompt": [40] * length, "max_tokens": 50, "temperature": 0})
        assert answer.status_code == status
    assert "128 tokens and the context 128" in answer.json()["error"]["message"]
    ids = booted.tokenizer.encode(PROMPT).ids
    answer = http.post(
        COMPLETIONS, json={"prompt": ids, "max_tokens": 10**6, "seed": 1, "logit_bias": {str(END): -100}}
    )
    choice = answer.json()["choices"][0]
    assert (choice["finish_reason"], answer.json()["usage"]["completion_tokens"]) == ("length", CONTEXT - len(ids))
    assert choice["text"] == alone(ids, CONTEXT, seed=1, logit_bias={END: -100}).text


def test_an_answer_that_goes_on_has_no_reason_to_have_ended(http: httpx2.Client):
    """ollama#4357: an empty string, where OpenAI's clients expect null or a reason."""
    for fields, last in (
        ({"max_tokens": 5, "logit_bias": {str(END): -100}}, "length"),
        ({"logit_bias": {str(END): 100}}, "stop"),
    ):
        for path, prompt in (
            (COMPLETIONS, {"prompt": PROMPT}),
            (CHAT, {"messages": [{"role": "user", "content": "a"}]}),
        ):
            answer = http.post(path, json={**prompt, **fields, "stream": True})
            chunks = [json.loads(event[6:]) for event in answer.text.split("\n\n") if event.startswith("data: {")]
            reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
            assert reasons == [None] * (len(reasons) - 1) + [last]
