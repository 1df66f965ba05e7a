"""Schemas that are refused, and where; and schemas made to take for ever, which must not."""

import json
import random
import socket
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest

from grammar_walks import GRAMMARS, allowed, json_schema, random_text
from qpack_runtime.serve.text.json_schema import SCHEMA_BYTES
from qpack_schemas.errors import QpackError, UsageError

STRING = {"type": "string"}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = STRING
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": 2}
    return schema


def pattern(text: str) -> dict[str, Any]:
    return {"type": "string", "pattern": text}


@pytest.mark.parametrize(
    ("schema", "where", "message"),
    [
        ({"type": "strin"}, "#", "Invalid type: strin"),
        ({"properties": {"a": {"required": "b"}}}, "#/properties/a", "Expected array for 'required'"),
        ({"properties": {"a/b": {"items": {"uniqueItems": True}}}}, "#/properties/a~1b/items", "uniqueItems"),
        ({"anyOf": [STRING, {"not": STRING}]}, "#/anyOf/1", "not"),
        ({"properties": {"a": {"format": "ipv7"}}}, "#/properties/a", "Unknown format: ipv7"),
        ({"$ref": "#/$defs/a", "$defs": {"a": pattern("(")}}, "#/$defs/a", "unclosed group"),
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"not": STRING}}}, "#/properties/b", "not"),
        ({"items": pattern("^(?=a)b")}, "#/items", "look-around"),
        ({"items": pattern(r"(a)\1")}, "#/items", "backreferences"),
        ({"items": pattern("(" * 3000 + ")" * 3000)}, "#/items", "regex parse error"),
        ({"prefixItems": [{"$ref": "#/$defs/none"}]}, "#/prefixItems/0", "'/\\$defs/none' does not exist"),
        ({"additionalProperties": {"oneOf": [STRING, {"maxLength": 3}]}}, "#/additionalProperties", "oneOf"),
        ({"$ref": "#"}, "#", "no text fits it"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "#", "no text fits it"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "#", "greater than maximum"),
        ({"const": "\ud800"}, "#", "hex escape"),
        ({"minimum": 10**400}, "#", "out of range"),
        ({"minimum": float("nan")}, "#", "not JSON compliant"),
        ({"properties": {"a": {"multipleOf": 999983}}}, "#/properties/a/multipleOf", "multipleOf 999983"),
        ({"multipleOf": 1e-9}, "#/multipleOf", "multipleOf 1e-09"),
        ({"allOf": [{"multipleOf": 97}, {"multipleOf": 89}]}, "#/allOf/1/multipleOf", "multipleOf 89"),
        ({"items": {"allOf": [pattern(f"a{i}") for i in range(60)]}}, "#/items", "it has 60"),
        ({"patternProperties": {f"^a{i}$": {} for i in range(900)}}, "#", "900 patternProperties"),
        ({"description": "a" * SCHEMA_BYTES}, "#", "65536 are the limit"),
    ],
    ids=range(24),
)
def test_a_refused_schema_is_refused_by_its_place(schema: dict[str, Any], where: str, message: str):
    with pytest.raises(UsageError, match=message) as caught:
        GRAMMARS.compile(json_schema(schema))
    assert caught.value.where == where
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("depth", [150, 900, 3000])
def test_a_schema_that_is_nested_too_deeply_is_refused(depth: int):
    with pytest.raises(UsageError, match="recursion") as caught:
        GRAMMARS.compile(json_schema(nested(depth)))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "response_format",
    [
        {},
        {"type": "text"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "a"}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": True}},
    ],
    ids=str,
)
def test_a_response_format_that_says_no_schema_is_refused(response_format: dict[str, Any]):
    with pytest.raises(UsageError, match="response_format"):
        GRAMMARS.compile(response_format)


BOMBS: dict[str, dict[str, Any]] = {
    "many items": {"type": "array", "items": STRING, "minItems": 10**9},
    "many items within many": {"type": "array", "minItems": 10**5, "items": nested(30) | {"minItems": 10**5}},
    "long string": {"type": "string", "minLength": 10**9},
    "many members": {"type": "object", "minProperties": 10**9},
    "deep": nested(50),
    "recursive": {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    "doubling": {
        "$defs": {f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
        | {"d40": STRING},
        "$ref": "#/$defs/d0",
    },
    "doubling by allOf": {
        "allOf": [{"anyOf": [{"properties": {f"{a}{i}": STRING}} for a in "ab"]} for i in range(20)],
    },
    "ambiguous": {"anyOf": [{"type": "array", "items": {"type": "string", "maxLength": i}} for i in range(300)]},
    "nested repeats": pattern("^((a{1,1000}){1,1000}){1,1000}$"),
    "long repeat": pattern("^a{1000000000}$"),
    "backtracking": pattern("^(a+)+b$"),
    "exponential machine": pattern("(a|b)*a(a|b){30}c$"),
    "long machine": pattern("^.*a.{500}$"),
    "wide classes": pattern("^" + r"\w{1,500}\W\w{1,500}" * 20 + "$"),
    "many alternatives": pattern("|".join(f"x{i}y" for i in range(3000))),
    "combined patterns": {"allOf": [pattern(f".*a{i}.*") for i in range(8)]},
    "huge enum": {"enum": [f"value{i}" for i in range(4000)]},
    "many numbers": {"enum": list(range(9000))},
    "many properties": {"type": "object", "properties": {f"p{i}": STRING for i in range(1000)}},
    "remainders": {"type": "integer", "multipleOf": 997},
    "wide range": {"type": "number", "minimum": -1.2345678901234567e300, "maximum": 1.2345e300},
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_schema_made_to_take_for_ever_does_not(bomb: str):
    """It is refused, or its masks come until it is complete or its limits end it."""
    rng = random.Random(3)
    with suppress(QpackError):
        grammar = GRAMMARS.compile(json_schema(BOMBS[bomb]))
        for _ in range(60):
            grammar.accept(int(rng.choice(allowed(grammar))))


def test_a_reference_to_another_place_is_never_fetched():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        with pytest.raises(UsageError, match="does not fetch") as caught:
            GRAMMARS.compile(json_schema({"items": {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/a.json"}}))
        assert caught.value.where == "#/items"
        with pytest.raises(BlockingIOError):
            server.accept()


def test_options_of_the_grammar_within_a_schema_have_no_effect():
    options = {"item_separator": ";", "key_separator": "=", "whitespace_pattern": "x", "lenient": True}
    schema = {"type": "array", "items": {"enum": [1]}, "minItems": 3, "x-guidance": options}
    assert json.loads(random_text(GRAMMARS.compile(json_schema(schema)), random.Random(0), 0)) == [1, 1, 1]
    with pytest.raises(UsageError, match="uniqueItems"):
        GRAMMARS.compile(json_schema(schema | {"uniqueItems": True}))


@pytest.mark.parametrize("multiples", [[0.01, 5], [0.001, 20, 3], [36], [0.5, 4], [2, 3, 7]])
def test_numbers_under_several_multiples_are_multiples_of_all(multiples: list[float]):
    schema = {"type": "number", "allOf": [{"multipleOf": multiple} for multiple in multiples]}
    for seed in range(20):
        text = random_text(GRAMMARS.compile(json_schema(schema)), random.Random(seed), 6)
        number = Fraction(text.decode("ascii"))
        assert all((number / Fraction(str(multiple))).denominator == 1 for multiple in multiples), number
