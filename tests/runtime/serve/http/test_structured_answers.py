"""Answers that must be JSON: what the client gets is accepted by jsonschema, however unlikely the model finds it."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import BadRequestError, OpenAI

from qpack_runtime.boot import Booted

MODEL = "tiny-qwen3_5"
MESSAGES: Any = [{"role": "user", "content": "Who art thou?"}]
# Small, since 512 tokens of ancient English spell JSON letter by letter, within a context of 128.
SCHEMAS: list[dict[str, Any]] = [
    {"enum": ["yes", "no", 3, None, {"a": [1]}]},
    {"type": "boolean"},
    {"type": "string", "pattern": "^[a-c]{2,4}$"},
    {"type": "integer", "minimum": -3, "maximum": 12},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {
        "type": "object",
        "properties": {"who": {"enum": ["Moses", "Aaron"]}, "age": {"type": "integer", "minimum": 1, "maximum": 999}},
        "required": ["who", "age"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"child": {"$ref": "#/$defs/node"}},
        "required": ["child"],
        "additionalProperties": False,
        "$defs": {"node": {"anyOf": [{"type": "null"}, {"const": "leaf"}]}},
    },
]


def format_of(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_an_answer_fits_its_schema(client: OpenAI, booted: Booted, schema: dict[str, Any]):
    """Without white space, with which a schema lets a model go on for ever."""
    spaces = [token for token in range(512) if booted.token_bytes[token].isspace()]
    asked: dict[str, Any] = {
        "model": MODEL, "messages": MESSAGES, "temperature": 2, "n": 4, "response_format": format_of(schema),
        "seed": 1, "logit_bias": {str(token): -100 for token in spaces},
    }  # fmt: skip
    answer = client.chat.completions.create(**asked)
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 4
    for choice in answer.choices:
        Draft202012Validator(schema).validate(json.loads(choice.message.content or ""))
    pieces: dict[int, str] = {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        for part in chunk.choices:
            pieces[part.index] = pieces.get(part.index, "") + (part.delta.content or "")
    assert pieces == {choice.index: choice.message.content for choice in answer.choices}


def test_an_answer_is_a_json_object(client: OpenAI, booted: Booted):
    (brace,) = booted.tokenizer.encode("}").ids
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format={"type": "json_object"}, logit_bias={str(brace): 100}
    )
    assert json.loads(answer.choices[0].message.content or "") == {}
    assert answer.choices[0].finish_reason == "stop"


def test_a_completion_takes_a_format_too(client: OpenAI):
    answer = client.completions.create(
        model=MODEL, prompt="Art thou?", max_tokens=20, extra_body={"response_format": format_of({"type": "boolean"})}
    )
    assert json.loads(answer.choices[0].text) in (True, False)


def test_an_answer_that_is_cut_off_is_the_beginning_of_one(client: OpenAI):
    schema = {"const": "and it came to pass"}
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format=format_of(schema), max_tokens=2
    )
    assert answer.choices[0].finish_reason == "length"
    text = answer.choices[0].message.content or ""
    assert text
    assert json.dumps(schema["const"]).startswith(text)


def test_an_answer_with_a_format_does_not_change_one_without(client: OpenAI):
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "seed": 5, "max_tokens": 20}
    before = client.chat.completions.create(**asked)
    client.chat.completions.create(**asked, response_format=format_of({"type": "boolean"}))
    after = client.chat.completions.create(**asked)
    assert after.choices == before.choices


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "nothing"}, "nothing"),
        ({"$ref": "https://example.com/schema.json"}, "example.com"),
        ({"$ref": "#"}, "schema"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "minimum|maximum|range"),
    ],
)
def test_a_schema_that_cannot_be_had_is_refused(client: OpenAI, schema: dict[str, Any], words: str):
    with pytest.raises(BadRequestError, match=words):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=format_of(schema))


def test_a_format_and_tools_exclude_each_other(client: OpenAI):
    tools: Any = [{"type": "function", "function": {"name": "weather"}}]
    asked: dict[str, Any] = {
        "model": MODEL, "messages": MESSAGES, "tools": tools, "response_format": format_of({"type": "boolean"}),
    }  # fmt: skip
    with pytest.raises(BadRequestError, match="can't hold tool calls") as caught:
        client.chat.completions.create(**asked)
    assert caught.value.param == "response_format"
    answer = client.chat.completions.create(**asked, tool_choice="none")
    assert json.loads(answer.choices[0].message.content or "") in (True, False)
