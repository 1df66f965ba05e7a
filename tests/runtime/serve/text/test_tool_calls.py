"""Calls are found in what Qwen models write, whatever the pieces it comes in; nothing else that they write is lost."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.utils.chat_parsing import parse_response

from qpack_runtime.serve.text.tool_calls import ToolCall, ToolCallParser


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = [
    tool("get_weather", city={"type": "string"}, days={"type": "integer"}, units={"enum": ["C", "F"]}),
    tool(
        "book",
        flight={"type": "object"},
        seats={"type": "array", "items": {"type": "string"}},
        price={"type": "number"},
        refundable={"type": "boolean"},
        note={"anyOf": [{"type": "string"}, {"type": "null"}]},
    ),
]
HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Tromsø", "days": 3}}\n</tool_call>'
CODER = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nTromsø\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
WEATHER = ToolCall("get_weather", '{"city": "Tromsø", "days": 3}')

# What the two spellings are in the terms of transformers, which parses them by itself.
FIELDS = {
    "content": {"content": "text"},
    "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
}
HERMES_TEMPLATE = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": FIELDS
    | {
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*",
            "close_pattern": r"\s*</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        }
    },
}
CODER_TEMPLATE = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": FIELDS
    | {
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>]+)>\s*",
            "close_pattern": r"</function>\s*</tool_call>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>]+)>\n(?P<value>.*?)\n</parameter>",
                "value_parser": {"name": "text", "args": {"strip": False}},
            },
            "repeats": True,
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        }
    },
}


def parsed(pieces: Iterable[str], **options: Any) -> list[str | ToolCall]:
    """All that comes out, with neighbouring texts as one."""
    parser = ToolCallParser(TOOLS, **options)
    out: list[str | ToolCall] = []
    for item in [*(item for piece in pieces for item in parser.push(piece)), *parser.finish()]:
        if isinstance(item, str) and out and isinstance(before := out[-1], str):
            out[-1] = before + item
        else:
            out.append(item)
    return out


def in_transformers(text: str, template: dict[str, Any]) -> list[ToolCall]:
    calls = parse_response(text, template, prefix="", tools=[*TOOLS]).get("tool_calls", [])
    functions = [call["function"] for call in calls]
    return [ToolCall(call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in functions]


@pytest.mark.parametrize("call", [HERMES, CODER])
def test_a_call_is_given_out_whole_and_text_around_it_stays(call: str):
    assert parsed([call]) == [WEATHER]
    assert parsed([f"I look.\n{call}\n{call}\n\n"]) == ["I look.\n", WEATHER, WEATHER]
    assert parsed([f"\n\n{call} then\n {call}"]) == [WEATHER, " then\n ", WEATHER]


# Names and values that both spellings can write. Strings of the second hold no mark and no number: transformers reads
# "1_000" and "inf" as Python does.
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
prose = st.text(st.sampled_from('ab<>/{}"\n é'), max_size=12).filter(lambda text: text.strip() != "")
bookings = st.fixed_dictionaries(
    {},
    optional={
        "flight": st.dictionaries(st.text("kv", min_size=1), st.integers() | st.text("äb c"), max_size=3),
        "seats": st.lists(st.text("A1 ", max_size=3), max_size=3),
        "price": st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6, allow_subnormal=False),
        "refundable": st.booleans(),
        "note": st.none() | st.text('xyz <>/"{}\n').filter(lambda text: text == text.strip()),
        "unknown": st.text("0123456789", min_size=1),
    },
)


@given(names, st.dictionaries(st.text(max_size=4), json_values, max_size=4))
@example("say", {"text": 'he said "</tool_call>"'})
@example("write", {"text": '</tool_call><tool_call>\n<think>\\"\\'})
def test_any_json_call_comes_out_with_its_arguments(name: str, arguments: dict[str, Any]):
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    (call,) = parsed([f"<tool_call>\n{body}\n</tool_call>"])
    assert isinstance(call, ToolCall)
    assert (call.name, json.loads(call.arguments)) == (name, arguments)


@given(st.lists(bookings, min_size=1, max_size=3))
def test_calls_are_those_that_transformers_finds(calls: list[dict[str, Any]]):
    hermes = "\n".join(
        f"<tool_call>\n{json.dumps({'name': 'book', 'arguments': call}, ensure_ascii=False)}\n</tool_call>"
        for call in calls
    )
    if "</tool_call>" not in str(calls):
        assert parsed([hermes]) == in_transformers(hermes, HERMES_TEMPLATE)
    # As Qwen3.5's template writes past calls: mappings and lists as JSON, all else as Python's str() writes it.
    spelled = [
        {key: json.dumps(value) if isinstance(value, dict | list) else str(value) for key, value in call.items()}
        for call in calls
    ]
    coder = "\n".join(
        "<tool_call>\n<function=book>\n"
        + "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in call.items())
        + "</function>\n</tool_call>"
        for call in spelled
    )
    assert [json.loads(call.arguments) for call in parsed([coder]) if isinstance(call, ToolCall)] == [
        json.loads(call.arguments) for call in in_transformers(coder, CODER_TEMPLATE)
    ]


REFERENCES = {
    "$defs": {"Id": {"type": "integer"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Loop"}]}},
    "properties": {"id": {"$ref": "#/$defs/Id"}, "loop": {"$ref": "#/$defs/Loop"}, "any": {}, "far": {"$ref": "x#/y"}},
}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("city", "12", "12"),
        ("city", '"quoted"', '"quoted"'),
        ("city", "  two\nlines  ", "  two\nlines  "),
        ("city", "", ""),
        ("city", "a</parameter>b", "a</parameter>b"),
        ("city", "</tool_call> </function>", "</tool_call> </function>"),
        ("days", "3", 3),
        ("days", "three", "three"),
        ("days", "1.5", "1.5"),
        ("days", "NaN", "NaN"),
        ("units", "C", "C"),
        ("nowhere", "12", "12"),
    ],
)
def test_a_bare_value_has_the_type_of_its_schema_or_is_the_text_it_was(key: str, text: str, value: Any):
    call = f"<tool_call>\n<function=get_weather>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>"
    assert parsed(call) == [ToolCall("get_weather", json.dumps({key: value}))]


def test_a_reference_in_a_schema_is_followed_and_one_in_a_circle_ends():
    parser = ToolCallParser([{"type": "function", "function": {"name": "f", "parameters": REFERENCES}}])
    body = "".join(f"<parameter={key}>7</parameter>" for key in ("id", "loop", "any", "far"))
    assert parser.push(f"<tool_call><function=f>{body}</function></tool_call>") == [
        ToolCall("f", '{"id": 7, "loop": "7", "any": "7", "far": "7"}')
    ]


def test_a_function_without_parameters_or_schema_is_a_call():
    parser = ToolCallParser([{"type": "function", "function": {"name": "f"}}])
    assert parser.push("<tool_call>\n<function=f>\n</function>\n</tool_call>") == [ToolCall("f", "{}")]
    assert parser.push('<tool_call>{"name": "f", "arguments": {}}</tool_call>') == [ToolCall("f", "{}")]


MALFORMED = [
    "<tool_call>",
    "<tool_call>\n",
    "Write <tool_call> and then JSON.",
    '<tool_call>{"name": "f", "arguments": {}}',
    '<tool_call>{"name": "f", "arguments": {}</tool_call>',
    '<tool_call>{"name": "f"}</tool_call>',
    '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": []}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": "two\nlines"}}</tool_call>',
    '<tool_call>{"a": "no end\n}</tool_call>',
    '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 5000 + "1" + "}" * 5001 + "</tool_call>",
    "<tool_call>[]</tool_call>",
    "<tool_call><function=f></tool_call>",
    "<tool_call><function=f>text</function></tool_call>",
    "<tool_call><function=f><parameter=a>1</function></tool_call>",
    "<tool_call><function=f><parameter=a>1\n<parameter=b>2</parameter></function></tool_call>",
    "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
    "</tool_call> <tool_cal <thin </think>",
]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_or_unfinished_call_is_the_text_it_was(text: str):
    assert parsed([text]) == [text]
    assert parsed(text) == [text]


@pytest.mark.parametrize("text", [text for text in MALFORMED if text.endswith(("</tool_call>", "JSON."))])
def test_a_malformed_call_takes_no_whole_one_with_it(text: str):
    assert parsed(f"{text}\n{HERMES}\n{CODER}") == [f"{text}\n", WEATHER, WEATHER]


def test_a_call_left_without_an_end_is_text_and_the_next_one_a_call():
    assert parsed([f'<tool_call>{{"name":\n{HERMES}']) == ['<tool_call>{"name":\n', WEATHER]
    assert parsed([f"<tool_call><function=f>\n{CODER}"]) == ["<tool_call><function=f>\n", WEATHER]


def test_within_thinking_a_call_is_text():
    thought = f"<think>\nI could write {HERMES}\n</think>\n\n"
    assert parsed([f"{thought}{HERMES}"]) == [thought, WEATHER]
    assert parsed([f"<think>{HERMES}"]) == [f"<think>{HERMES}"]


def test_a_prompt_that_ends_within_thinking_begins_there():
    assert parsed([f"{HERMES}</think>{HERMES}"], thinking=True) == [f"{HERMES}</think>", WEATHER]


def test_white_space_alone_is_kept_where_there_is_no_call():
    assert parsed(["\n", " "]) == ["\n "]
    assert parsed([f" \n{HERMES}\n \n{HERMES}\n"]) == [WEATHER, WEATHER]


def test_text_is_held_back_only_where_a_mark_may_begin():
    parser = ToolCallParser(TOOLS)
    assert parser.push("a < b, a <to") == ["a < b, a "]
    assert parser.push("m") == ["<tom"]
    assert parser.push("<tool_call>") == []
    assert parser.push(" no") == ["<tool_call> no"]
    assert parser.push(f"{HERMES}!") == [WEATHER, "!"]
    assert parser.finish() == []


MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<function=book>", "</function>", "</parameter>"]
SHARDS = [
    "<parameter=note>",
    '{"name": "book", "arguments": {}}',
    HERMES,
    CODER,
    '"',
    "\\",
    "\n",
    " ",
    "{",
    "<",
    "</",
    "tool",
]
fragments = st.sampled_from([*MARKS, *SHARDS])
texts = st.lists(fragments | prose, max_size=12).map("".join)


@given(texts, st.data())
def test_pieces_change_nothing(text: str, data: st.DataObject):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(pieces) == parsed([text]) == parsed(text)


@given(texts)
def test_without_a_call_nothing_is_lost(text: str):
    out = parsed([text])
    if all(isinstance(item, str) for item in out):
        assert "".join(map(str, out)) == text
    else:  # and with one, only calls and white space are not text
        rest = text
        for item in out:
            if isinstance(item, str):
                assert item in rest
                rest = rest[rest.index(item) + len(item) :]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{" * 20_000 + "</tool_call>",
        "<tool_call>{" + '"</tool_call>\n' * 10_000,
        "<tool_call>" + " " * 200_000,
        "<tool_call><function=f>" + "<parameter=a></parameter>x" * 10_000 + "</function></tool_call>",
        "<think>" * 20_000,
        "<" * 200_000,
        " " * 200_000,
    ],
    ids=["unclosed", "open strings", "blank call", "parameters", "thoughts", "angles", "blank"],
)
def test_long_malformed_text_comes_out_as_it_was(text: str):
    """Each takes well under a second, and would take minutes if work grew with the square of the length."""
    assert parsed([text]) == [text]
    assert parsed(text[at : at + 50] for at in range(0, len(text), 50)) == [text]
