"""From a JSON Schema to the text of a grammar for llguidance, within bounds; what is refused is named by its place."""

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from qpack_schemas.errors import UsageError

SCHEMA_BYTES = 65536  # of its JSON text
# One break or indentation between two parts, so that a model can't write white space for ever.
WHITESPACE = r"\r?\n[ \t]{0,64}|[ \t]{1,64}"
# What llguidance may spend. A unit of fuel is some 0.1 us, a lexer state about 700 bytes of one sequence.
LIMITS = LLParserLimits(step_lexer_fuel=50_000, step_max_items=20_000, max_lexer_states=50_000, verbose_errors=False)

# What no limit of llguidance bounds, so that a small schema could take hours. A number machine has a state for each
# remainder; beyond these values its own arithmetic, least common multiples in 32 bits, would wrap around as well.
MULTIPLE_STATES = 1000
MULTIPLE_EXPONENT = 3  # powers of ten from 10^-3 to 10^3 cost little
PATTERN_PROPERTIES = 16  # each pair is checked to be disjoint
COMBINED_PATTERNS = 8  # whether n patterns can hold together takes up to 2^n steps

NAMED = ("$defs", "definitions", "properties", "patternProperties")  # name -> schema; definitions are looked at first
LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLE = ("items", "additionalItems", "additionalProperties")
COMBINING = ("$ref", "allOf", "anyOf", "oneOf")  # beside another of them or these below, both must hold
COMBINED = (*NAMED[2:], "additionalProperties", "items", "prefixItems", "pattern", "format", "enum", "const")
BLAMED_BYTES = 4 * SCHEMA_BYTES  # of the parts of a refused schema that are tried alone to find the place


def schema_grammar(schema: dict[str, Any]) -> str:
    """The grammar's text. Raises UsageError for a schema that is too large or whose numbers would be.

    `llguidance` refuses the rest when it compiles the text; `refusal` then says where."""
    try:
        text = json.dumps(schema, allow_nan=False)
        parts = list(_parts(schema, ""))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the schema can't be written as JSON: {error}", where="#") from None
    if len(text) > SCHEMA_BYTES:
        raise UsageError(
            f"the schema has {len(text)} bytes, {SCHEMA_BYTES} are the limit",
            where="#",
            remedy="leave out descriptions, and name what repeats in $defs",
        )
    _check_multiples(parts)
    _check_patterns(parts)
    try:
        return _text(schema)
    except ValueError as error:  # deeper than 128 levels, numbers beyond float64, lone surrogates
        raise UsageError(f"the schema can't be read: {error}", where="#") from None


def refusal(schema: dict[str, Any], message: str) -> UsageError:
    """The error for a schema that llguidance refused with `message`: the smallest part that it refuses likewise."""
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    where, spent = "#", 0
    for pointer, part in _parts(schema, ""):
        text = _text(definitions | part)
        if (spent := spent + len(text)) > BLAMED_BYTES:
            break
        alone = LLMatcher.validate_grammar(text, limits=LIMITS)
        if alone and message.startswith(alone):  # behind it may stand which $ref led there
            where = _shortened(f"#{pointer}")
            break
    if message.startswith("NoExtensionBias"):
        message = "no text fits it"
    return UsageError(
        f"the schema is not supported: {_shortened(message)}", where=where, remedy="leave this out or say it otherwise"
    )


def _text(schema: dict[str, Any]) -> str:
    # The schema's own "x-guidance" would loosen the grammar; for JSON Schema it is an unknown keyword, without effect.
    return LLMatcher.grammar_from_json_schema(
        json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE, "lenient": False}})
    )


def _parts(schema: Any, pointer: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema within a schema and its JSON pointer; the inner ones first, itself last."""
    if not isinstance(schema, dict):
        return
    for keyword in NAMED:
        if isinstance(schema.get(keyword), dict):
            for name, part in schema[keyword].items():
                yield from _parts(part, f"{pointer}/{keyword}/{name.replace('~', '~0').replace('/', '~1')}")
    for keyword in LISTED:
        if isinstance(schema.get(keyword), list):
            for index, part in enumerate(schema[keyword]):
                yield from _parts(part, f"{pointer}/{keyword}/{index}")
    for keyword in SINGLE:
        yield from _parts(schema.get(keyword), f"{pointer}/{keyword}")
    yield pointer, schema


def _check_multiples(parts: list[tuple[str, dict[str, Any]]]) -> None:
    """Holds the product of all multipleOf, without their powers of ten, within MULTIPLE_STATES."""
    coefficients: set[int] = set()
    for pointer, part in parts:
        value = part.get("multipleOf")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue  # absent, or refused by llguidance
        _, digits, exponent = Decimal(str(value)).normalize().as_tuple()
        coefficients.add(int("".join(map(str, digits))))
        assert isinstance(exponent, int)
        if abs(exponent) > MULTIPLE_EXPONENT or math.prod(coefficients) > MULTIPLE_STATES:
            raise UsageError(
                f"multipleOf {value} is not supported here: the product of all multipleOf, but for powers of ten from "
                f"0.001 to 1000, may be {MULTIPLE_STATES}",
                where=_shortened(f"#{pointer}/multipleOf"),
                remedy="use a rounder number, or minimum and maximum",
            )


def _check_patterns(parts: list[tuple[str, dict[str, Any]]]) -> None:
    """Holds the number of pattern properties, and of patterns and formats if any may have to hold together."""
    named = sum(len(part["patternProperties"]) for _, part in parts if isinstance(part.get("patternProperties"), dict))
    if named > PATTERN_PROPERTIES:
        raise UsageError(
            f"the schema has {named} patternProperties, {PATTERN_PROPERTIES} are the limit",
            where="#",
            remedy="use additionalProperties, or one pattern for several",
        )
    combining = [pointer for pointer, part in parts if _combines(part)]
    patterns = named + sum((keyword in part) for _, part in parts for keyword in ("pattern", "format"))
    if combining and patterns > COMBINED_PATTERNS:
        raise UsageError(
            f"subschemas that must hold together, here, allow for {COMBINED_PATTERNS} pattern and format in the whole "
            f"schema; it has {patterns}",
            where=_shortened(f"#{combining[0]}"),
            remedy="write the properties of allOf, or of what stands beside $ref and anyOf, into one object",
        )


def _combines(part: dict[str, Any]) -> bool:
    several = isinstance(part.get("allOf"), list) and len(part["allOf"]) > 1
    combining = sum(keyword in part for keyword in COMBINING)
    return several or combining > 1 or (combining > 0 and any(keyword in part for keyword in COMBINED))


def _shortened(message: str) -> str:
    """One line of at most 200 characters."""
    line = " ".join(message.split())
    return line if len(line) <= 200 else f"{line[:200]}..."
