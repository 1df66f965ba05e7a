"""Values against the schemas of openapi.json, which are compiled once into plain functions.

A general validator takes ten seconds for a million token ids and answers for every branch of an anyOf. These functions
look at sizes before items and stop at the first fault, so that a wrong body is refused as fast as a right one is read.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from qpack_runtime.serve.http.api_error import ApiError
from qpack_runtime.serve.http.in_words import schema_in_words, value_in_words
from qpack_schemas.strict_json import JsonValue, load_strict

Schema = Mapping[str, Any]
Check = Callable[[Any], None]  # raises _Refusal
Test = Callable[[Any], bool]  # of a value whose type is right; raises _Refusal for a fault inside of it

DOCUMENT: Mapping[str, Any] = load_strict(Path(__file__).with_name("openapi.json"))
_COMPONENTS: Mapping[str, Schema] = DOCUMENT["components"]["schemas"]

_TYPES = {
    "null": (type(None),), "boolean": (bool,), "integer": (int, float), "number": (int, float), "string": (str,),
    "array": (list,), "object": (dict,),
}  # fmt: skip
_FOR_PEOPLE = {"description", "default", "examples", "format", "title"}
_FOR_VALUES = {
    "type", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "pattern", "minItems", "maxItems",
    "items", "maxProperties", "propertyNames", "properties", "required", "additionalProperties",
}  # fmt: skip
_NAME = re.compile(r"\w{1,64}")


class _Refusal(Exception):
    """The first fault; `path` leads from it back to the value that was checked."""

    def __init__(self, problem: str, *path: str | int):
        self.problem, self.path = problem, list(path)


def compile_schema(name: str) -> Check:
    """The check of components/schemas/`name`. It raises ApiError 400 for the first fault, `param` being its place.

    Raises ValueError for a keyword that it doesn't know."""
    check = _check(_COMPONENTS[name])

    def validate(value: JsonValue) -> None:
        try:
            check(value)
        except _Refusal as refusal:
            param = _place(reversed(refusal.path))
            raise ApiError(400, f"{param or 'the body'} {refusal.problem}", param=param or None) from None

    return validate


def _place(path: Iterable[str | int]) -> str:
    steps = [
        f"[{s}]" if isinstance(s, int) else f".{s}" if _NAME.fullmatch(s) else f"[{value_in_words(s)}]" for s in path
    ]
    return "".join(steps).removeprefix(".")


def _refuse(value: JsonValue, allowed: str, *path: str | int) -> NoReturn:
    raise _Refusal(f"is {value_in_words(value)}, which is not supported; it takes {allowed}", *path)


def _check(schema: Schema) -> Check:
    tests, allowed = _tests(schema), schema_in_words(schema, _COMPONENTS)

    def check(value: JsonValue) -> None:
        test = tests.get(type(value))
        if test is None or not test(value):
            _refuse(value, allowed)

    return check


def _tests(schema: Schema) -> dict[type, Test]:
    """What a value of each allowed type must fulfil."""
    keywords = schema.keys() - _FOR_PEOPLE
    if keywords == {"$ref"}:
        return _tests(_COMPONENTS[schema["$ref"].rpartition("/")[2]])
    if keywords == {"anyOf"}:
        return _tests_of_any(schema["anyOf"])
    if keywords == {"oneOf", "discriminator"}:
        return {dict: _test_by_discriminator(schema["discriminator"])}
    if keywords in ({"enum"}, {"const"}):
        return _tests_of_values(schema.get("enum", [schema.get("const")]))
    if keywords - _FOR_VALUES or not keywords >= {"type"}:
        raise ValueError(f"a schema of openapi.json has keywords that are not supported here: {sorted(keywords)}")
    names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    return {kind: _test(name, kind, schema) for name in names for kind in _TYPES[name]}


def _test(name: str, kind: type, schema: Schema) -> Test:
    if kind is str:
        return _test_of_string(schema)
    if kind is list:
        return _test_of_list(schema)
    if kind is dict:
        return _test_of_object(schema)
    if name in ("integer", "number"):
        return _test_of_number(schema, whole=name == "integer")
    return lambda value: True


def _tests_of_values(values: list[Any]) -> dict[type, Test]:
    kinds = {type(value) for value in values}
    return {kind: frozenset(value for value in values if type(value) is kind).__contains__ for kind in kinds}


def _tests_of_any(branches: list[Schema]) -> dict[type, Test]:
    """Branches differ by the value's type; branches for lists differ by the type of the first item."""
    tests: dict[type, Test] = {}
    lists: dict[type, Test] = {}
    for branch in branches:
        for kind, test in _tests(branch).items():
            if kind is list:
                lists |= dict.fromkeys(_tests(branch["items"]), test)
            elif kind in tests:
                raise ValueError(f"two branches of an anyOf in openapi.json take a {kind.__name__}")
            tests[kind] = test
    if lists:
        of_empty = next(iter(lists.values()))
        tests[list] = lambda value: (lists.get(type(value[0]), lambda _: False) if value else of_empty)(value)
    return tests


def _test_by_discriminator(discriminator: Mapping[str, Any]) -> Test:
    name, branches = discriminator["propertyName"], discriminator["mapping"]
    allowed = " or ".join(f'"{word}"' for word in branches)
    tests = {word: _tests({"$ref": reference})[dict] for word, reference in branches.items()}

    def test(value: dict[str, Any]) -> bool:
        if name not in value:
            raise _Refusal(f"is missing; it takes {allowed}", name)
        word = value[name]
        if not isinstance(word, str) or word not in tests:
            _refuse(word, allowed, name)
        return tests[word](value)

    return test


def _test_of_number(schema: Schema, *, whole: bool) -> Test:
    low, above, high = (schema.get(word) for word in ("minimum", "exclusiveMinimum", "maximum"))

    def test(value: float) -> bool:
        return (
            (not whole or value == value // 1)
            and (low is None or value >= low)
            and (above is None or value > above)
            and (high is None or value <= high)
        )

    return test


def _test_of_string(schema: Schema) -> Test:
    low, high = schema.get("minLength", 0), schema.get("maxLength", float("inf"))
    if "pattern" not in schema:
        return lambda value: low <= len(value) <= high
    matches = _matcher(schema["pattern"])
    return lambda value: low <= len(value) <= high and matches(value)


def _matcher(pattern: str) -> Test:
    """As ECMA-262 has it: `$` does not match before a newline at the end."""
    search = re.compile(pattern.replace("$", r"\Z")).search
    return lambda value: search(value) is not None


def _test_of_list(schema: Schema) -> Test:
    low, high = schema.get("minItems", 0), schema.get("maxItems", float("inf"))
    items: Schema = schema.get("items", {})
    check = _check(items) if items else None
    bounds = (items["minimum"], items["maximum"]) if items.keys() == {"type", "minimum", "maximum"} else None

    def test(value: list[Any]) -> bool:
        if not low <= len(value) <= high:
            return False
        if check is None or not value or (bounds and _all_between(value, *bounds)):
            return True
        index = 0
        try:
            for index, item in enumerate(value):  # noqa: B007
                check(item)
        except _Refusal as refusal:
            refusal.path.append(index)
            raise
        return True

    return test


def _all_between(value: list[Any], low: int, high: int) -> bool:
    """Whether a list holds nothing but ints within bounds: thirty times as fast as a check of each."""
    return set(map(type, value)) == {int} and low <= min(value) and max(value) <= high


def _test_of_object(schema: Schema) -> Test:
    high, required = schema.get("maxProperties", float("inf")), schema.get("required", ())
    checks = {name: _check(property) for name, property in schema.get("properties", {}).items()}
    others = schema.get("additionalProperties", True)
    check_other = _check(others) if isinstance(others, dict) else None
    key_pattern = schema.get("propertyNames", {}).get("pattern")
    is_key = _matcher(key_pattern) if key_pattern else None
    if others is True and not checks and not is_key:  # any object, however large
        return lambda value: len(value) <= high

    def test(value: dict[str, Any]) -> bool:
        if len(value) > high:
            return False
        key = ""
        try:
            for key, item in value.items():
                if is_key and not is_key(key):
                    raise _Refusal(f"is not a key that is supported; keys match {key_pattern}")
                check = checks.get(key, check_other)
                if check is not None:
                    check(item)
                elif others is False:
                    raise _Refusal("is not a field that is known here" + _nearest(key, checks))
        except _Refusal as refusal:
            refusal.path.append(key)
            raise
        for key in required:
            if key not in value:
                allowed = schema_in_words(schema["properties"][key], _COMPONENTS)
                raise _Refusal(f"is missing; it takes {allowed}", key)
        return True

    return test


def _nearest(key: str, known: Mapping[str, Check]) -> str:
    names = difflib.get_close_matches(key[:64], known, 1)
    return f"; did you mean {names[0]}?" if names else ""
