"""Schemas and values in plain words, for messages that say what was sent and what is allowed."""

import json
from collections.abc import Mapping
from typing import Any

from qpack_schemas.strict_json import JsonValue

_SHOWN = 60  # characters of a value in a message


def value_in_words(value: JsonValue) -> str:
    """A value as people recognize it, however large it is."""
    if isinstance(value, dict):
        return f"an object of {_count(len(value), 'field')}"
    if isinstance(value, list):
        return f"a list of {_count(len(value), 'item')}"
    if isinstance(value, str):
        if len(value) > _SHOWN:
            return f"{json.dumps(value[:_SHOWN], ensure_ascii=False)}... ({len(value)} characters)"
        return json.dumps(value, ensure_ascii=False)
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def schema_in_words(schema: Mapping[str, Any], components: Mapping[str, Any]) -> str:
    """What a schema allows, but for null, which says as little as an absent field does. `components` holds the schemas
    by the last part of their `$ref`."""
    if "$ref" in schema:
        return schema_in_words(components[schema["$ref"].rpartition("/")[2]], components)
    if "oneOf" in schema:
        return "an object"
    if "anyOf" in schema:
        branches = [schema_in_words(branch, components) for branch in schema["anyOf"] if branch.get("type") != "null"]
        return " or ".join(branches)
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(json.dumps(value) for value in values if value is not None)
    types = schema.get("type", [])
    named = [types] if isinstance(types, str) else [name for name in types if name != "null"]
    return " or ".join(_type_in_words(name, schema, components) for name in named) or "any value"


def _type_in_words(name: str, schema: Mapping[str, Any], components: Mapping[str, Any]) -> str:
    if name in ("integer", "number"):
        return f"a {'whole ' * (name == 'integer')}number{_range_in_words(schema)}"
    if name == "string":
        size = _size_in_words(schema.get("minLength"), schema.get("maxLength"), "character")
        pattern = f" that matches {schema['pattern']}" if "pattern" in schema else ""
        return f"a string{size and f' of {size}'}{pattern}"
    if name == "array":
        size = _size_in_words(schema.get("minItems"), schema.get("maxItems"), "item")
        items = schema_in_words(schema["items"], components) if "items" in schema else ""
        return f"a list{size and f' of {size}'}{items and f', each {items}'}"
    if name == "object":
        size = _size_in_words(None, schema.get("maxProperties"), "field")
        return f"an object{size and f' of {size}'}"
    return {"boolean": "true or false", "null": "only null"}[name]


def _range_in_words(schema: Mapping[str, Any]) -> str:
    low, above, high = schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    bounds = {"of at least": low, "above": above, "at most": high}
    words = " and ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)
    return f" {words}" if words else ""


def _size_in_words(low: int | None, high: int | None, noun: str) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f"at least {_count(low or 0, noun)}"
    if low == high:
        return _count(high, noun)
    return f"{low} to {_count(high, noun)}" if low else f"at most {_count(high, noun)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
