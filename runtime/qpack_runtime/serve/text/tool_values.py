"""What a value written as bare text in a tool call is, by the JSON Schema of the tool's parameters."""

from collections.abc import Mapping
from typing import Any

from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import JsonValue, parse_strict

# Qwen's templates show a model its own calls so; it goes on in that spelling.
PYTHON = {"True": "true", "False": "false", "None": "null"}


def typed_value(text: str, parameters: Any, name: str) -> JsonValue:
    """The JSON value that `text` spells if the schema of parameter `name` allows that type, and it isn't a string.
    Else, and where the schema says nothing of the type, `text` itself."""
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    types = _types(schema, parameters, set())
    if not types - {"string"}:
        return text
    try:
        value = parse_strict(PYTHON.get(text.strip(), text), "tool call")
    except InputError:
        return text
    return value if not isinstance(value, str) and _types_of(value) & types else text


def _types_of(value: JsonValue) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return {"integer", "number"}
    kinds = {float: "number", str: "string", list: "array", dict: "object"}
    return {"null"} if value is None else {kinds[type(value)]}


def _types(schema: Any, root: Any, seen: set[str]) -> set[str]:
    """The types that a schema names, through its unions, enumerations and references; each of these is followed once,
    because they may go round in circles."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type", [])
    found = {named} if isinstance(named, str) else {name for name in _list(named) if isinstance(name, str)}
    for value in [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]:
        found |= _types_of(value)
    for union in ("anyOf", "oneOf", "allOf"):
        for member in _list(schema.get(union)):
            found |= _types(member, root, seen)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/") and reference not in seen:
        seen.add(reference)
        found |= _types(_at(root, reference), root, seen)
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(root: Any, reference: str) -> Any:
    for step in reference[2:].split("/"):
        root = root.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(root, Mapping) else None
    return root
