"""Streams, as OpenAI's client reads them and byte by byte: their pieces are those of the whole answer, in its shape."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator
from openai import AsyncOpenAI, OpenAI

from qpack_runtime.serve.http.validation import DOCUMENT
from runtime.serve.http.conftest import Alone
from server_process import ServerProcess

MODEL = "tiny-qwen3_5"
END = 511
PROMPT = "And the LORD said unto"
MESSAGES: Any = [{"role": "user", "content": "Who art thou?"}]
CHAT_PROMPT = "<|im_start|>user\nWho art thou?<|im_end|>\n<|im_start|>assistant\n"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKED = [(CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": PROMPT}), (COMPLETIONS, {"prompt": [PROMPT, "Woe"]})]
PATHS = pytest.mark.parametrize(("path", "asked"), ASKED, ids=["chat", "completion", "two prompts"])


def events(http: httpx2.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of a stream, whose framing is checked to the byte."""
    answer = http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *pieces, done, end = answer.content.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    assert all(piece.startswith(b"data: {") and b"\n" not in piece for piece in pieces)
    return [json.loads(piece.removeprefix(b"data: ")) for piece in pieces]


def joined(chunks: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """The choice of a whole answer that the chunks of one of a stream add up to."""
    mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
    scored = [choice["logprobs"] for choice in mine if choice["logprobs"]]
    logprobs = {
        name: [item for one in scored for item in one[name]] if isinstance(value, list) else value
        for name, value in (scored[0] if scored else {}).items()
    }
    whole = {"index": index, "finish_reason": mine[-1]["finish_reason"], "logprobs": logprobs or None}
    if "delta" not in mine[0]:
        return whole | {"text": "".join(choice["text"] for choice in mine)}
    assert mine[0]["delta"] == {"role": "assistant", "content": ""}
    assert all(choice["delta"].keys() <= {"content"} for choice in mine[1:])
    content = "".join(choice["delta"].get("content", "") for choice in mine)
    return whole | {"message": {"role": "assistant", "content": content, "refusal": None}}


@PATHS
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3},
        {"stop": ["the", "and"], "n": 3},
        {"max_tokens": 1},
        {"logprobs": 3, "n": 2},
        {"logprobs": 0, "stop": [" of the", "and "], "n": 4},
        {"logprobs": 2, "logit_bias": {str(END): -100}, "temperature": 2, "max_tokens": 60},
        {"echo": True, "n": 2},
    ],
    ids=str,
)
def test_a_stream_adds_up_to_the_whole_answer(
    http: httpx2.Client, path: str, asked: dict[str, Any], fields: dict[str, Any]
):
    body = {"seed": 5, "max_tokens": 30, **asked, **fields}
    if path == CHAT:
        body.pop("echo", None)
        if "logprobs" in body:
            body |= {"logprobs": True, "top_logprobs": body["logprobs"]}
    whole = http.post(path, json=body).json()
    chunks = events(http, path, body)
    assert [joined(chunks, index) for index in range(len(whole["choices"]))] == whole["choices"]
    assert all(chunk.keys() & {"usage"} == set() for chunk in chunks)
    assert {(chunk["id"], chunk["model"], chunk["seed"], chunk["system_fingerprint"]) for chunk in chunks} == {
        (chunks[0]["id"], MODEL, 5, whole["system_fingerprint"])
    }


@PATHS
def test_the_usage_is_told_by_a_last_chunk_without_choices(http: httpx2.Client, path: str, asked: dict[str, Any]):
    body = {"seed": 5, "max_tokens": 5, "n": 2, **asked}
    whole = http.post(path, json=body).json()
    *chunks, last = events(http, path, body | {"stream_options": {"include_usage": True}})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks)
    assert [joined(chunks, index) for index in range(len(whole["choices"]))] == whole["choices"]


@PATHS
def test_every_chunk_is_what_the_document_says(http: httpx2.Client, path: str, asked: dict[str, Any]):
    name = "ChatCompletionChunk" if path == CHAT else "Completion"
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    more = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    body = {"max_tokens": 5, "stream_options": {"include_usage": True}, **asked, **more}
    for chunk in events(http, path, body):
        Draft202012Validator(schema).validate(chunk)


def test_openais_client_reads_a_chat_as_it_comes(client: OpenAI, alone: Alone):
    expected = alone(CHAT_PROMPT, 20, seed=9)
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, seed=9, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    assert last.usage is not None
    assert (last.choices, last.usage.completion_tokens) == ([], len(expected.output_ids))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [expected.finish_reason]


def test_openais_streams_put_the_answer_together(client: OpenAI, alone: Alone):
    """The client's own accumulator, which is strict about the order of events."""
    text = alone(CHAT_PROMPT, 60, seed=9).text
    expected, stop, _ = text.partition(text[20:24])
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, seed=9, max_tokens=60, logprobs=True, stop=stop
    ) as stream:
        answer = stream.until_done().get_final_completion()
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == (expected, "stop")
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(one.token for one in choice.logprobs.content).startswith(expected + stop)


def test_streams_that_run_together_hold_what_each_holds_alone(server: ServerProcess, alone: Alone):
    async def read(client: AsyncOpenAI, seed: int) -> str:
        stream = await client.completions.create(model=MODEL, prompt=PROMPT, seed=seed, max_tokens=30, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*[read(client, seed) for seed in range(12)])

    assert asyncio.run(ask()) == [alone(PROMPT, 30, seed=seed).text for seed in range(12)]
