"""The document against OpenAPI's own schema, JSON Schema, the types of OpenAI's package and the limits of sampling."""

import json
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from jsonschema import Draft202012Validator
from openai import BaseModel
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.chat_completion_message_param import ChatCompletionMessageParam
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsStreaming as CompletionParams
from openapi_spec_validator import OpenAPIV31SpecValidator

from qpack_runtime.sampling_options import SamplingOptions
from qpack_runtime.serve.http import requests
from qpack_runtime.serve.http.validation import DOCUMENT, compile_schema
from qpack_schemas.sampling import BIAS_LIMIT, TOP_K_LIMIT, TOP_LOGPROBS_LIMIT

SCHEMAS = DOCUMENT["components"]["schemas"]
OURS = {"top_k", "min_p", "repetition_penalty", "session", "timeout"}

# Every parameter of OpenAI's that has an effect; what only null may be given for; the rest is without effect.
CHAT_USED = {
    "model", "messages", "temperature", "top_p", "n", "seed", "stop", "stream", "stream_options", "max_tokens",
    "max_completion_tokens", "logprobs", "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty",
    "response_format", "tools", "tool_choice",
}  # fmt: skip
CHAT_WITHOUT_EFFECT = {
    "user", "safety_identifier", "prompt_cache_key", "metadata", "store", "service_tier", "modalities",
    "parallel_tool_calls",
}  # fmt: skip
CHAT_REFUSED = {
    "audio", "function_call", "functions", "moderation", "prediction", "prompt_cache_options", "prompt_cache_retention",
    "reasoning_effort", "verbosity", "web_search_options",
}  # fmt: skip
COMPLETION_USED = {
    "model", "prompt", "temperature", "top_p", "n", "best_of", "seed", "stop", "stream", "stream_options", "max_tokens",
    "logprobs", "echo", "logit_bias", "presence_penalty", "frequency_penalty",
}  # fmt: skip
COMPLETION_WITHOUT_EFFECT = {"user", "suffix"}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return SCHEMAS[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def property_of(schema: str, name: str) -> dict[str, Any]:
    return resolved(SCHEMAS[schema]["properties"][name])


def check(schema: dict[str, Any], value: Any) -> None:
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(value)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def media() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, status or "request", and media type object, of all bodies."""
    for path, _, operation in operations():
        for content in operation.get("requestBody", {}).get("content", {}).values():
            yield path, "request", content
        for status, response in operation["responses"].items():
            if "$ref" in response:
                response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
            for content in response["content"].values():
                yield path, status, content


def examples(content: dict[str, Any]) -> list[Any]:
    named = [example["value"] for example in content.get("examples", {}).values()]
    return [*named, content["example"]] if "example" in content else named


def unknown_fields(value: Any) -> set[str]:
    """Fields that OpenAI's model did not expect, at any depth."""
    if isinstance(value, list):
        return {name for item in value for name in unknown_fields(item)}
    if not isinstance(value, BaseModel):
        return set()
    inner = {name for field in type(value).model_fields for name in unknown_fields(getattr(value, field))}
    return inner | set(value.model_extra or {})


def test_the_document_is_openapi_3_1():
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert not list(OpenAPIV31SpecValidator(dict(DOCUMENT)).iter_errors())


def test_every_schema_is_json_schema():
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


def test_every_component_is_used():
    text = json.dumps(DOCUMENT)
    unused = {
        name
        for kind in ("schemas", "responses")
        for name in DOCUMENT["components"][kind]
        if f'"#/components/{kind}/{name}"' not in text
    }
    assert unused == {"ChatCompletionChunk"}, "the events of a stream are the one shape that no media type can refer to"


def test_every_example_has_the_shape_that_it_is_an_example_of():
    found = 0
    for _, _, content in media():
        for example in examples(content):
            check(content["schema"], example)
            found += 1
    for name, schema in SCHEMAS.items():
        for example in schema.get("examples", []):
            check({"$ref": f"#/components/schemas/{name}"}, example)
            found += 1
    assert found > 25


def test_every_request_example_parses():
    parsers = {
        "/v1/chat/completions": lambda body: requests.parse_chat(body, {}),
        "/v1/completions": lambda body: requests.parse_completion(body, {}),
        "/tokenize": requests.parse_tokenize,
        "/detokenize": requests.parse_detokenize,
    }
    bodies = [(path, example) for path, kind, content in media() if kind == "request" for example in examples(content)]
    assert {path for path, _ in bodies} == parsers.keys()
    for path, example in bodies:
        parsers[path](json.dumps(example).encode())


def test_every_answer_is_one_of_openais():
    """With no field that its types don't have, but for the seed and the model's length."""
    types = {"/v1/chat/completions": ChatCompletion, "/v1/completions": Completion, "/v1/models/{model}": Model}
    answers = [
        (types[path], example)
        for path, status, content in media()
        if status == "200" and path in types
        for example in examples(content)
    ]
    answers += [(ChatCompletionChunk, example) for example in SCHEMAS["ChatCompletionChunk"]["examples"]]
    assert {kind for kind, _ in answers} == {ChatCompletion, ChatCompletionChunk, Completion, Model}
    for kind, example in answers:
        assert unknown_fields(kind.model_validate(example)) <= ({"max_model_len"} if kind is Model else {"seed"})


@pytest.mark.parametrize(
    ("schema", "params", "used", "without_effect", "refused", "ours"),
    [
        (
            "ChatCompletionRequest", ChatParams, CHAT_USED, CHAT_WITHOUT_EFFECT, CHAT_REFUSED,
            OURS | {"chat_template_kwargs"},
        ),
        (
            "CompletionRequest", CompletionParams, COMPLETION_USED, COMPLETION_WITHOUT_EFFECT, set(),
            OURS | {"response_format"},
        ),
    ],
)  # fmt: skip
def test_every_parameter_of_openai_is_used_or_said_to_have_no_effect_or_refused(
    schema: str, params: type, used: set[str], without_effect: set[str], refused: set[str], ours: set[str]
):
    theirs = set(get_type_hints(params))
    assert theirs == used | without_effect | refused
    assert set(SCHEMAS[schema]["properties"]) == theirs | ours
    for name in refused:
        assert property_of(schema, name)["type"] == "null"
        assert property_of(schema, name)["description"].startswith("Not supported")
    for name in without_effect - {"suffix"}:
        assert property_of(schema, name)["description"].startswith("Accepted, without effect")


def test_messages_have_the_fields_of_openais():
    """Besides, the function's name beside its result, what a model thought, and null for what an answer has."""
    extras = {"tool": {"name"}, "assistant": {"reasoning_content", "annotations"}}
    for params in get_args(ChatCompletionMessageParam):
        hints = get_type_hints(params)
        (role,) = get_args(hints["role"]) or get_args(get_args(hints["role"])[0])
        target = resolved(SCHEMAS["Message"])["discriminator"]["mapping"][role]
        properties = set(resolved({"$ref": target})["properties"])
        assert properties == set(hints) | extras.get(role, set())


def test_the_limits_are_those_of_the_sample_instruction():
    assert property_of("ChatCompletionRequest", "top_k")["maximum"] == TOP_K_LIMIT
    assert property_of("ChatCompletionRequest", "logit_bias")["maxProperties"] == BIAS_LIMIT
    assert property_of("ChatCompletionRequest", "top_logprobs")["maximum"] == TOP_LOGPROBS_LIMIT
    assert property_of("CompletionRequest", "logprobs")["maximum"] == TOP_LOGPROBS_LIMIT
    assert property_of("CompletionRequest", "max_tokens")["default"] == requests.COMPLETION_TOKENS
    assert property_of("CompletionRequest", "n")["maximum"] == requests.MOST_SEQUENCES


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"])
@pytest.mark.parametrize("bound", ["minimum", "maximum"])
def test_what_the_document_allows_sampling_takes(name: str, bound: str):
    value = property_of("ChatCompletionRequest", name).get(bound, 1e-300)
    SamplingOptions(**{name: {"top_k": max(0, value), "seed": value % 2**64}.get(name, value)})


def test_an_operation_with_a_body_lists_every_way_to_refuse_one():
    for path, method, operation in operations():
        statuses = set(operation["responses"])
        if method == "post":
            assert statuses - {"404"} == {"200", "400", "401", "408", "413", "415", "429", "500", "503"}
        else:
            assert statuses >= {"200", "400", "500"}
        names_a_model = (path.startswith("/v1/") and path != "/v1/models") or path.endswith("tokenize")
        assert ("404" in statuses) == names_a_model
        assert ("401" in statuses) == (operation.get("security") != []), "what is open to all asks for no key"


def test_a_full_queue_says_when_to_try_again():
    assert set(DOCUMENT["components"]["responses"]["Busy"]["headers"]) == {"Retry-After", "retry-after-ms"}


def test_a_keyword_that_the_checks_do_not_know_is_found_at_import(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SCHEMAS, "Novel", {"type": "number", "multipleOf": 2})
    with pytest.raises(ValueError, match="multipleOf"):
        compile_schema("Novel")
