"""Tool calls as OpenAI's client reads them. The tiny model writes none, so the server's engine is made to say it did:
each choice that it reads is replaced by the next token of a script, which the request's seed names."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from tokenizers import Tokenizer

from bundles import ASSETS, build_bundle
from qpack_packager.serving import Options
from server_process import ServerProcess

MODEL = "tiny-qwen3_5"
MESSAGES: Any = [{"role": "user", "content": "Is it dry?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "rain",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]
DELFT = '<tool_call>\n{"name": "rain", "arguments": {"city": "Delft"}}\n</tool_call>'
THREE = "<tool_call>\n<function=rain>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
SCRIPTS = [
    DELFT,
    "I ask.\n" + DELFT,
    DELFT + "\n" + THREE,
    '<tool_call>\n{"name": "rain", "arguments": {}',  # without its end
    "It is dry, <tool> said.",
]
END = 511

SCRIPTED = """
from dataclasses import replace
from qpack_runtime.engine import Engine
scripts, left = {scripts}, {{}}
def scripted_admit(self, slot, options, *, grammar=False, admit=Engine.admit):
    left[slot] = list(scripts[options.seed % len(scripts)])
    admit(self, slot, options, grammar=grammar)
def scripted_read(self, pending, read=Engine.read):
    choices = zip(pending.slots, read(self, pending), strict=True)
    return [replace(choice, token=left[slot].pop(0)) if left.get(slot) else choice for slot, choice in choices]
Engine.admit, Engine.read = scripted_admit, scripted_read
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    options = Options(batches=(1, 4), contexts=(256,), prefills=(64,), slots=4)  # room for calls, letter by letter
    bundle = build_bundle(ASSETS / MODEL, tmp_path_factory.mktemp("scripted") / MODEL, options)
    tokenizer = Tokenizer.from_file(str(bundle / "model/tokenizer.json"))
    patch = SCRIPTED.format(scripts=[[*tokenizer.encode(script).ids, END] for script in SCRIPTS])
    with (
        ServerProcess(bundle, patch=patch) as server,
        OpenAI(base_url=f"http://127.0.0.1:{server.ready().port}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client
        assert server.complaints() == []


def ask(client: OpenAI, script: int, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "seed": script, **fields}
    ).choices[0]


def said(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]


@pytest.mark.parametrize(
    ("script", "content", "calls"),
    [
        (0, None, [("rain", {"city": "Delft"})]),
        (1, "I ask.\n", [("rain", {"city": "Delft"})]),
        (2, None, [("rain", {"city": "Delft"}), ("rain", {"days": 3})]),
        (3, SCRIPTS[3], []),
        (4, SCRIPTS[4], []),
    ],
)
def test_a_call_that_a_model_writes_is_given_back_as_one(client: OpenAI, script: int, content: str | None, calls: Any):
    choice = ask(client, script)
    assert (choice.message.content, said(choice.message)) == (content, calls)
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    ids = [call.id for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == len(ids)
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=TOOLS, seed=script) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        whole = stream.get_final_completion().choices[0]
    assert (whole.message.content or None, said(whole.message)) == (content, calls)
    assert whole.finish_reason == choice.finish_reason
    told = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.index for call in told] == list(range(len(calls))), "each call comes whole, in one piece"


def test_calls_stay_text_where_none_are_asked_for(client: OpenAI):
    for fields in ({"tool_choice": "none"}, {"tools": []}):
        choice = ask(client, 1, **fields)
        assert (choice.message.content, choice.message.tool_calls) == (SCRIPTS[1], None)
        assert choice.finish_reason == "stop"


def test_a_call_that_is_cut_off_is_text_and_no_call(client: OpenAI):
    choice = ask(client, 0, max_tokens=20)
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert choice.message.content
    assert SCRIPTS[0].startswith(choice.message.content)


def test_each_answer_of_several_has_its_own_calls(client: OpenAI):
    choices = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, seed=0, n=3).choices
    assert [said(choice.message) for choice in choices] == [
        [("rain", {"city": "Delft"})],
        [("rain", {"city": "Delft"})],
        [("rain", {"city": "Delft"}), ("rain", {"days": 3})],
    ]
    assert [choice.message.content for choice in choices] == [None, "I ask.\n", None]


def test_an_answer_with_calls_goes_on_when_its_results_have_come(client: OpenAI):
    message = ask(client, 0).message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "dry"}
    for spelling in (message, message.model_dump()):
        choice = ask(client, 4, messages=[*MESSAGES, spelling, result])
        assert choice.message.content == SCRIPTS[4]
