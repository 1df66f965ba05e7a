"""Bodies become requests or an ApiError 400: compared with jsonschema, and with what OpenAI's own client sends."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from qpack_runtime.serve.http.api_error import ApiError, as_api_error
from qpack_runtime.serve.http.json_body import MOST_LEVELS
from qpack_runtime.serve.http.requests import parse_chat, parse_completion, parse_detokenize, parse_tokenize
from qpack_runtime.serve.http.validation import DOCUMENT, compile_schema
from qpack_schemas.errors import IntegrityError, UsageError

DEFAULTS = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
HELLO = [{"role": "user", "content": "Hello"}]
CALL = {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Delft"}'}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}

PARSERS: dict[str, Callable[[bytes], Any]] = {
    "ChatCompletionRequest": lambda body: parse_chat(body, DEFAULTS),
    "CompletionRequest": lambda body: parse_completion(body, DEFAULTS),
    "TokenizePromptRequest": parse_tokenize,
    "TokenizeMessagesRequest": parse_tokenize,
    "DetokenizeRequest": parse_detokenize,
}
CHECKS = {name: compile_schema(name) for name in PARSERS}
ORACLES = {
    name: Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]})
    for name in PARSERS
}

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([-3, -1, 0, 1, 2, 20, 21, 128, 129, 256, 257, 2**31, 2**64, 1.0, 0.5, 1e300, -2.5, "auto", "a-1"])
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=6,
)


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high) | st.integers(int(np.ceil(low)), int(high))


def whole(low: int, high: int) -> st.SearchStrategy[float]:
    """Whole numbers, also in the spelling 1.0."""
    return st.integers(low, high) | st.integers(low, min(high, 2**31 - 1)).map(float)


CONTENT = TEXT | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), max_size=2)
MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user"]), "content": CONTENT}),
        st.fixed_dictionaries({"role": st.just("assistant"), "content": CONTENT}, optional={"name": st.none() | TEXT}),
        st.just({"role": "assistant", "content": None, "tool_calls": [CALL]}),
        st.fixed_dictionaries({"role": st.just("tool"), "content": CONTENT, "tool_call_id": TEXT}),
        st.fixed_dictionaries({"role": st.just("function"), "content": st.none() | TEXT, "name": TEXT}),
    ),
    min_size=1,
    max_size=4,
)
STOP = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=256)
SHARED: dict[str, st.SearchStrategy[Any]] = {
    "model": TEXT,
    "temperature": numbers(0, 2),
    "top_p": numbers(0.001, 1),
    "top_k": whole(-1, 256),
    "min_p": numbers(0, 1),
    "repetition_penalty": numbers(0.01, 2),
    "presence_penalty": numbers(-2, 2),
    "frequency_penalty": numbers(-2, 2),
    "logit_bias": st.dictionaries(st.integers(0, 999_999_999).map(str), numbers(-100, 100), max_size=5),
    "seed": whole(-(2**63), 2**64 - 1),
    "stop": STOP | st.lists(STOP, min_size=1, max_size=16),
    "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}]),
    "session": st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True),
    "timeout": numbers(0.001, 86400),
    "user": TEXT,
}
IDS = st.lists(whole(0, 2**31 - 1), min_size=1, max_size=4)
PROMPTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def requests_of(needed: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(needed, optional={name: st.none() | value for name, value in optional.items()})


VALID: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "ChatCompletionRequest": requests_of(
        {"messages": MESSAGES},
        SHARED
        | {
            "n": whole(1, 128),
            "max_tokens": whole(1, 2**31 - 1),
            "logprobs": st.booleans(),
            "stream": st.booleans(),
            "tools": st.lists(st.just(TOOL), max_size=2),
            "tool_choice": st.sampled_from(["none", "auto"]),
            "chat_template_kwargs": st.dictionaries(TEXT, VALUES, max_size=2),
            "metadata": st.dictionaries(TEXT, TEXT, max_size=2),
            "store": st.just(False),
        },
    ),
    "CompletionRequest": requests_of(
        {"prompt": PROMPTS | st.lists(PROMPTS, min_size=1, max_size=4) | IDS | st.lists(IDS, min_size=1, max_size=4)},
        SHARED | {"n": whole(1, 32), "max_tokens": whole(0, 2**31 - 1), "echo": st.booleans(), "suffix": st.just("")},
    ),
    "TokenizePromptRequest": requests_of({"prompt": TEXT}, {"add_special_tokens": st.booleans()}),
    "TokenizeMessagesRequest": requests_of({"messages": MESSAGES}, {"add_generation_prompt": st.booleans()}),
    "DetokenizeRequest": requests_of({"tokens": IDS}, {"model": TEXT}),
}
SCHEMAS = pytest.mark.parametrize("schema", sorted(PARSERS))


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def chat(**fields: Any) -> bytes:
    return encoded({"messages": HELLO, **fields})


def refusal(parse: Callable[[bytes], Any], body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(body)
    error = caught.value
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert len(error.message) <= 1100
    return error


def chat_refusal(body: bytes) -> ApiError:
    return refusal(PARSERS["ChatCompletionRequest"], body)


def completion_refusal(**fields: Any) -> ApiError:
    return refusal(PARSERS["CompletionRequest"], encoded({"prompt": "a", **fields}))


def options_of(**fields: Any) -> Any:
    return parse_chat(chat(**fields), DEFAULTS).decoding.options


@SCHEMAS
@given(data=st.data())
def test_any_json_value_is_a_request_or_an_error_for_the_client(schema: str, data: st.DataObject):
    value = data.draw(VALUES | st.dictionaries(st.sampled_from(["messages", "prompt", "tokens", "n", "stop"]), VALUES))
    try:
        PARSERS[schema](encoded(value))
    except ApiError:
        refusal(PARSERS[schema], encoded(value))


@SCHEMAS
@given(body=st.binary(max_size=40))
def test_any_bytes_are_an_error_for_the_client(schema: str, body: bytes):
    refusal(PARSERS[schema], body)


@SCHEMAS
@given(data=st.data())
def test_a_request_that_the_schema_allows_parses(schema: str, data: st.DataObject):
    value = data.draw(VALID[schema])
    ORACLES[schema].validate(value)
    PARSERS[schema](encoded(value))


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside a value."""
    pairs = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [(value, key) for key, _ in pairs] + [place for _, child in pairs for place in places(child)]


@SCHEMAS
@given(data=st.data())
def test_the_compiled_checks_allow_what_jsonschema_allows(schema: str, data: st.DataObject):
    """Of requests that are right but for one place, or have a field too many."""
    value = json.loads(json.dumps(data.draw(VALID[schema])))
    names = list(DOCUMENT["components"]["schemas"][schema]["properties"])
    if data.draw(st.booleans()):
        container, key = data.draw(st.sampled_from(places(value)))
    else:
        container, key = value, data.draw(st.sampled_from([*names, "unheard_of"]))
    container[key] = data.draw(VALUES)
    try:
        CHECKS[schema](value)
        allowed = True
    except ApiError:
        allowed = False
    assert allowed == ORACLES[schema].is_valid(value)


@SCHEMAS
@given(data=st.data())
def test_null_is_as_if_the_field_were_not_there(schema: str, data: st.DataObject):
    value = {"seed": 1, **data.draw(VALID[schema])} if "Completion" in schema else data.draw(VALID[schema])
    if value.get("seed", 1) is None:
        value["seed"] = 1
    bare = {name: field for name, field in value.items() if field is not None}
    assert PARSERS[schema](encoded(value)) == PARSERS[schema](encoded(bare))


# ---- what OpenAI's client sends, and makes of the answer


def sent_by_the_client(send: Callable[[openai.OpenAI], Any], answer: dict[str, Any], status: int = 200) -> bytes:
    """The body that OpenAI's client sends for a call, which is answered by `answer`."""
    bodies: list[bytes] = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        bodies.append(request.content)
        return httpx2.Response(status, json=answer)

    with (
        httpx2.Client(transport=httpx2.MockTransport(respond)) as transport,
        openai.OpenAI(api_key="key", base_url="http://host/v1", http_client=transport, max_retries=0) as client,
    ):
        send(client)
    return bodies[0]


def example(path: str, name: str) -> Any:
    response = DOCUMENT["paths"][path]["post"]["responses"]["200"]
    return response["content"]["application/json"]["examples"][name]["value"]


def test_a_conversation_of_openais_client_parses_with_its_own_answers_in_it():
    answers: list[Any] = []
    answer = example("/v1/chat/completions", "call")
    sent_by_the_client(
        lambda client: answers.append(client.chat.completions.create(model="any", messages=HELLO)),  # pyright: ignore
        answer,
    )
    tools: Any = [TOOL]
    message = answers[0].choices[0].message
    for spelling in (message, message.model_dump()):  # the second has all the fields that are null
        messages: Any = [*HELLO, spelling, {"role": "tool", "tool_call_id": "call_0", "content": "dry"}]
        body = sent_by_the_client(
            lambda client, messages=messages: client.chat.completions.create(
                model="any", messages=messages, tools=tools, temperature=None, stop=None, max_tokens=None, seed=-1,
                logprobs=True, top_logprobs=3, extra_body={"top_k": 5, "session": "s"},
            ),
            answer,
        )  # fmt: skip
        request = parse_chat(body, DEFAULTS)
        assert request.messages[1]["tool_calls"][0]["function"] == CALL["function"]
        assert request.messages[1].keys() <= {"role", "content", "tool_calls"}
        assert request.use_tools
        assert request.model == "any"
        assert request.tools == [TOOL]
        assert request.decoding.top_logprobs == 3
        assert request.decoding.session == "s"
        assert (request.decoding.options.temperature, request.decoding.options.top_k) == (0.6, 5)


def test_openais_client_reads_the_field_to_blame_from_a_refusal():
    error = chat_refusal(chat(temperature=3))
    with pytest.raises(openai.BadRequestError) as caught:
        sent_by_the_client(
            lambda client: client.chat.completions.create(model="any", messages=HELLO),  # pyright: ignore
            error.body(),
            error.status,
        )
    assert (caught.value.param, caught.value.type, caught.value.code) == ("temperature", "invalid_request_error", None)
    assert error.message in str(caught.value)


# ---- what requests mean


def test_the_bundle_speaks_where_the_request_is_silent():
    assert {name: getattr(options_of(), name) for name in DEFAULTS} == DEFAULTS
    assert options_of(temperature=0, top_p=None).greedy
    assert options_of(temperature=0, top_p=None).top_p == DEFAULTS["top_p"]
    assert options_of(top_k=-1).top_k == options_of(top_k=0).top_k == 0
    assert parse_chat(chat(), {}).decoding.options.temperature == 1


@given(seed=st.integers(-(2**63), 2**63 - 1))
def test_a_negative_seed_is_its_twos_complement(seed: int):
    assert options_of(seed=seed).seed == int(np.array(seed, np.int64).view(np.uint64))


def test_a_seed_that_is_not_given_is_drawn_and_survives_a_float64():
    seeds = {options_of().seed for _ in range(50)}
    assert len(seeds) == 50
    assert all(int(float(seed)) == seed for seed in seeds)


def test_limits_of_an_answer_are_openais():
    assert parse_chat(chat(), {}).decoding.max_tokens is None
    assert parse_chat(chat(max_completion_tokens=5), {}).decoding.max_tokens == 5
    assert parse_chat(chat(max_completion_tokens=5, max_tokens=5.0), {}).decoding.max_tokens == 5
    assert parse_completion(encoded({"prompt": "a", "max_tokens": None}), {}).decoding.max_tokens == 16
    assert parse_completion(encoded({"prompt": "a", "max_tokens": 0, "echo": True}), {}).decoding.max_tokens == 0


def test_log_probabilities_are_asked_for_in_two_ways():
    assert parse_chat(chat(), {}).decoding.top_logprobs is None
    assert parse_chat(chat(logprobs=True), {}).decoding.top_logprobs == 0
    assert parse_completion(encoded({"prompt": "a", "logprobs": 0}), {}).decoding.top_logprobs == 0
    assert parse_completion(encoded({"prompt": "a"}), {}).decoding.top_logprobs is None
    assert options_of(logprobs=True).logprobs
    assert not options_of().logprobs


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2.0], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_a_prompt_has_four_spellings(prompt: Any, prompts: list[Any]):
    found = parse_completion(encoded({"prompt": prompt}), {}).prompts
    assert found == prompts
    assert all(type(token) is int for ids in found if isinstance(ids, list) for token in ids)


def test_text_as_the_format_asks_for_nothing():
    assert parse_chat(chat(response_format={"type": "text"}), {}).decoding.response_format is None
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    assert parse_completion(encoded({"prompt": "a", "response_format": wanted}), {}).decoding.response_format == wanted


def test_tools_are_shown_but_not_called_if_the_choice_is_none():
    request = parse_chat(chat(tools=[TOOL], tool_choice="none"), {})
    assert (request.tools, request.use_tools) == ([TOOL], False)
    assert parse_chat(chat(tools=[]), {}).tools is None


def test_a_stream_is_asked_for_with_or_without_usage():
    assert not parse_chat(chat(), {}).decoding.stream
    assert not parse_chat(chat(stream=True), {}).decoding.include_usage
    assert parse_chat(chat(stream=True, stream_options={"include_usage": True}), {}).decoding.include_usage
    assert parse_chat(chat(stop="\n"), {}).decoding.stop == ("\n",)


def test_tokenizing_adds_special_tokens_to_texts_only():
    assert parse_tokenize(encoded({"prompt": ""})).add_special_tokens
    conversation = parse_tokenize(encoded({"messages": HELLO}))
    assert (conversation.messages, conversation.add_special_tokens, conversation.add_generation_prompt) == (
        HELLO, False, True,
    )  # fmt: skip
    assert parse_detokenize(encoded({"tokens": [1.0, 2]})).tokens == [1, 2]


# ---- refusals


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": 3}, "temperature", "temperature is 3, which is not supported; it takes a number from 0 to 2"),
        ({"temperature": True}, "temperature", "is true"),
        ({"top_p": 0}, "top_p", "a number above 0 and at most 1"),
        ({"n": 10**9}, "n", "a whole number from 1 to 128"),
        ({"n": 1.5}, "n", "n is 1.5"),
        ({"seed": 2**64}, "seed", "is 18446744073709551616"),
        ({"max_tokens": 0}, "max_tokens", "from 1 to"),
        ({"stop": []}, "stop", "a string of 1 to 256 characters or a list of 1 to 16 items"),
        ({"stop": ["x", ""]}, "stop[1]", "a string of 1 to 256 characters"),
        ({"stop": "x" * 10**6}, "stop", "... (1000000 characters)"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "a number from -100 to 100"),
        ({"logit_bias": {"05": 1}}, "logit_bias.05", "keys match"),
        ({"logit_bias": {"5\n": 1}}, 'logit_bias["5\\n"]', "keys match"),
        ({"session": "a\n"}, "session", "a string that matches"),
        ({"response_format": {"type": "grammar"}}, "response_format.type", '"json_object"'),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
        ({"tool_choice": "required"}, "tool_choice", 'is "required", which is not supported; it takes "none"'),
        ({"tool_choice": {"type": "function"}}, "tool_choice", 'it takes "none" or "auto"'),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", 'it takes "function"'),
        ({"store": True}, "store", "it takes false"),
        ({"store": 0}, "store", "store is 0"),
        ({"service_tier": "priority"}, "service_tier", "not supported"),
        ({"modalities": ["text", "audio"]}, "modalities", "1 item"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "it takes only null"),
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream is not true"),
        ({"stream": True, "stream_options": {"chunks": 1}}, "stream_options.chunks", "not a field"),
        ({"top_logprobs": 1}, "top_logprobs", "logprobs is not true"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "max_tokens is 1 and max_completion_tokens is 2"),
        ({"messages": []}, "messages", "a list of 0 items"),
        ({"messages": [{"content": "a"}]}, "messages[0].role", "is missing"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role", '"user" or "assistant"'),
        ({"messages": [*HELLO, {"role": "user", "content": None}]}, "messages[1].content", "is null"),
        ({"messages": [*HELLO, {"role": "assistant"}]}, "messages[1].content", "content, tool_calls or both"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id", "is missing"),
        (
            {"messages": [{"role": "user", "content": [{"image_url": {"url": "x"}, "type": "image_url"}]}]},
            "messages[0].content[0].type",
            'is "image_url", which is not supported; it takes "text"',
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field_the_value_and_what_is_allowed(fields: dict[str, Any], param: str, words: str):
    error = chat_refusal(chat(**fields))
    assert error.param == param
    assert error.message.startswith(f"{param} ")
    assert words in error.message


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": ""}, "prompt", "at least 1 character"),
        ({"prompt": None}, "prompt", "prompt is null"),
        ({"prompt": ["a", 1]}, "prompt[1]", "is 1"),
        ({"prompt": [1, "a"]}, "prompt[1]", "from 0 to 2147483647"),
        ({"prompt": [1, True]}, "prompt[1]", "is true"),
        ({"prompt": [[1], []]}, "prompt[1]", "1 to 1000000 items"),
        ({"prompt": [{}]}, "prompt", "a list of 1 item"),
        ({"prompt": ["a"] * 3, "n": 64}, "n", "make 192 sequences"),
        ({"best_of": 2}, "best_of", "best_of is 2 and n is 1"),
        ({"echo": True, "logprobs": 0}, "logprobs", "not computed"),
        ({"logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"max_tokens": -1}, "max_tokens", "from 0 to"),
        ({"suffix": "z"}, "suffix", 'it takes ""'),
    ],
)
def test_a_completion_is_refused_by_the_field(fields: dict[str, Any], param: str, words: str):
    error = completion_refusal(**fields)
    assert error.param == param
    assert words in error.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"messages": "\xff"}', "byte 0xff at offset 14"),
        ('{"messages": []}'.encode("utf-16"), "not UTF-8"),
        (b'{"n": 1, "n": 2}', "stands twice"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": 1e999}', "not a finite number"),
        (b'{"user": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b"[" * 10**5, "nested too deeply"),
        (b'{"a":' * 10**5, "nested too deeply"),
        (b"[]", "the body is a list of 0 items"),
        (b'"text"', "it takes an object"),
        (b'{"' + b"x" * 10**6 + b'": 1}', "not a field that is known here"),
        (b'{"a": ' + b"1" * 5000 + b"}", "digits"),
        (b'{"a": 1, "a": 2, "' + b"x" * 10**5 + b'": 1}', "stands twice"),
    ],
)
def test_a_body_that_is_no_strict_json_object_is_refused(body: bytes, words: str):
    error = chat_refusal(body)
    assert words in error.message
    error.body()["error"]["message"].encode("utf-8")


def test_nesting_is_bounded_before_anyone_walks_a_value():
    def deep(levels: int) -> bytes:
        inner = b"[" * (levels - 2) + b"]" * (levels - 2)
        return b'{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"a": ' + inner + b"}}"

    parse_chat(deep(MOST_LEVELS), {})
    assert f"more than {MOST_LEVELS} levels" in chat_refusal(deep(MOST_LEVELS + 1)).message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": [0] * 10**5}, "stop"),
        ({"logit_bias": {str(token): "x" for token in range(10**5)}}, "logit_bias"),
        ({"tools": [0] * 10**5}, "tools"),
        ({"messages": [0] * 10**5}, "messages"),
    ],
)
def test_what_is_too_large_is_refused_before_its_items_are_looked_at(fields: dict[str, Any], param: str):
    assert chat_refusal(chat(**fields)).param == param


def test_a_long_list_of_ids_is_checked_to_its_last_id():
    assert parse_detokenize(encoded({"tokens": [12345] * 10**6})).tokens == [12345] * 10**6
    assert refusal(parse_detokenize, encoded({"tokens": [1] * (10**6 + 1)})).param == "tokens"
    for bad in (-1, 2**31, True, 0.5, "x", None, []):
        assert refusal(parse_detokenize, encoded({"tokens": [*[1] * 999, bad]})).param == "tokens[999]"


def test_prompt_and_messages_exclude_each_other():
    assert refusal(parse_tokenize, encoded({"prompt": "a", "messages": HELLO})).param == "prompt"
    assert refusal(parse_tokenize, b"{}").param == "prompt"


def test_a_client_learns_of_its_own_faults_and_not_of_the_hosts():
    usage = as_api_error(UsageError("is not a message", where="messages[3].content", remedy="write text"))
    assert (usage.status, usage.param) == (400, "messages[3].content")
    assert usage.message == "is not a message; write text"
    assert as_api_error(UsageError("no", where="model/chat_template.jinja")).param is None
    damage = as_api_error(IntegrityError("weights.bin is damaged", [], where="/srv/bundle"))
    assert (damage.status, damage.type) == (500, "server_error")
    assert "bundle" not in damage.message
    assert "weights" not in damage.message


def test_a_message_never_quotes_a_request_in_full():
    assert len(ApiError(400, "x" * 10**6).body()["error"]["message"]) < 1100
