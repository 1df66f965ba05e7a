"""JSON Schema validation with findings that name the place and stay readable."""

import json
import re
from collections.abc import Iterator
from functools import cache, reduce
from importlib.resources import files
from operator import getitem
from typing import Any, cast

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError

from qpack_schemas.errors import Finding
from qpack_schemas.strict_json import JsonValue

_SHOWN = 160  # characters of a value in a message


def _pattern(_validator: object, pattern: str, value: object, _schema: object) -> Iterator[ValidationError]:
    """As ECMA-262 has it: `$` does not match before a newline at the end."""
    if isinstance(value, str) and not re.search(pattern.replace("$", r"\Z"), value):
        yield ValidationError(f"{json.dumps(value)[:_SHOWN]} does not match {pattern}")


def _is_integer(_checker: object, value: object) -> bool:
    """JSON Schema also takes 4.0 and 1e300 for integers; they are no sizes."""
    return type(value) is int


_TYPES = Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer)
_Validator: Any = validators.extend(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    Draft202012Validator, {"pattern": _pattern}, type_checker=_TYPES
)


@cache
def _validator(name: str) -> Any:
    text = files("qpack_schemas").joinpath(name).read_text(encoding="utf-8")
    schema = json.loads(text)
    return _Validator(_inlined(schema, schema))


def _inlined(part: Any, schema: Any) -> Any:
    """`part` with what they name in place of all {"$ref": "#/..."}: looking them up takes half the time of a check. No
    schema of the contract names itself."""
    if isinstance(part, list):
        return [_inlined(entry, schema) for entry in cast(list[Any], part)]
    if not isinstance(part, dict):
        return part
    entries = cast(dict[str, Any], part)
    if list(entries) == ["$ref"]:
        keys = entries["$ref"].removeprefix("#/").split("/")
        return _inlined(reduce(getitem, keys, schema), schema)
    return {key: _inlined(entry, schema) for key, entry in entries.items()}


def check_schema(document: JsonValue, schema: str, where: str, *, tolerate_unknown: bool = False) -> list[Finding]:
    """Findings of `document` against the schema file `schema`. `tolerate_unknown`: properties that this version does
    not know are no finding, for documents of a newer minor version."""
    try:
        errors: list[ValidationError] = list(_validator(schema).iter_errors(document))
    except RecursionError:  # comparing and printing values takes more of the stack than reading them did
        return [Finding(f"{where}#", "is nested too deeply")]
    return sorted(
        Finding(where + "#" + _pointer(error), _message(error))
        for error in errors
        if not (tolerate_unknown and error.validator == "additionalProperties")
    )


def _pointer(error: ValidationError) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in error.absolute_path)


def _message(error: ValidationError) -> str:
    message = error.message
    return message if len(message) <= 2 * _SHOWN else f"{message[:_SHOWN]} ... {message[-_SHOWN:]}"
