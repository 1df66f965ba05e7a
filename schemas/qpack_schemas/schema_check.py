"""JSON Schema validation with findings that name the place and stay readable."""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from qpack_schemas.errors import Finding
from qpack_schemas.strict_json import JsonValue

_SHOWN = 160  # characters of a value in a message


@cache
def _validator(name: str) -> Draft202012Validator:
    text = files("qpack_schemas").joinpath(name).read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))


def check_schema(document: JsonValue, schema: str, where: str, *, tolerate_unknown: bool = False) -> list[Finding]:
    """Findings of `document` against the schema file `schema`. `tolerate_unknown`: properties that this version does not
    know are no finding, for documents of a newer minor version."""
    errors: list[Any] = list(_validator(schema).iter_errors(document))  # pyright: ignore[reportUnknownMemberType]
    return sorted(
        Finding(where + "#" + _pointer(error), _message(error))
        for error in errors
        if not (tolerate_unknown and error.validator == "additionalProperties")
    )


def _pointer(error: ValidationError) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in error.absolute_path)


def _message(error: ValidationError) -> str:
    message = error.message
    if error.validator == "pattern":
        message = f"{json.dumps(error.instance)[:_SHOWN]} does not match {error.validator_value}"
    return message if len(message) <= 2 * _SHOWN else f"{message[:_SHOWN]} ... {message[-_SHOWN:]}"
