"""Typed reading of a checkpoint's JSON files, with errors that name the file and the JSON pointer (RFC 6901)."""

import json
import sys
from pathlib import Path

from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import JsonValue, load_strict


class JsonObject:
    """A JSON object and where it stands. A key with the value null counts as absent.

    The readers raise InputError for a value of a wrong type, and for an absent key unless it is optional.
    """

    def __init__(self, value: JsonValue, path: str, pointer: str = ""):
        if not isinstance(value, dict):
            raise InputError(f"is {shown(value)}, not an object", where=f"{path}#{pointer}" if pointer else path)
        self.value = value
        self.path = path
        self.pointer = pointer

    @classmethod
    def load(cls, path: Path) -> "JsonObject":
        """The object in a JSON file. Raises InputError if it is absent or not strict JSON."""
        if not path.is_file():
            raise InputError("is absent", where=str(path), remedy="copy it from where the checkpoint came from")
        return cls(load_strict(path), str(path))

    def pointer_to(self, *keys: str | int) -> str:
        return "/".join([self.pointer, *(str(key).replace("~", "~0").replace("/", "~1") for key in keys)])

    def at(self, *keys: str | int) -> str:
        """Where a value stands: `file#/json/pointer`."""
        return f"{self.path}#{self.pointer_to(*keys)}"

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`; sizes are at least 1. Required unless there is a default."""
        value = self._typed(key, (int,), "a whole number")
        if value is not None and value < minimum:
            raise InputError(f"is {shown(value)}, it must be at least {minimum}", where=self.at(key))
        return self._present(key, default if value is None else value)

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0 that a double holds. Required unless there is a default."""
        value = self._typed(key, (int, float), "a number")
        if value is not None and not 0 < value <= sys.float_info.max:
            raise InputError(f"is {shown(value)}, it must be above 0 and fit a double", where=self.at(key))
        return float(self._present(key, default if value is None else value))

    def flag(self, key: str) -> bool | None:
        return self._typed(key, (bool,), "true or false")

    def string(self, key: str) -> str | None:
        return self._typed(key, (str,), "a string")

    def required_string(self, key: str) -> str:
        return self._present(key, self.string(key))

    def strings(self, key: str) -> list[str] | None:
        value = self._typed(key, (list,), "a list of strings")
        for i, item in enumerate(value or ()):
            if not isinstance(item, str):
                raise InputError(f"is {shown(item)}, expected a string", where=self.at(key, i))
        return value

    def object(self, key: str) -> "JsonObject | None":
        """None for {} as well: an empty object says as little as none."""
        value = self._typed(key, (dict,), "an object")
        return JsonObject(value, self.path, self.pointer_to(key)) if value else None

    def objects(self, key: str) -> "list[JsonObject]":
        """The objects of a list; none if the key is absent."""
        value = self._typed(key, (list,), "a list of objects")
        return [JsonObject(item, self.path, self.pointer_to(key, i)) for i, item in enumerate(value or ())]

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids, which stand there as one number, as a list or not at all."""
        value = self._typed(key, (int, list), "a token id or a list of them")
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int and item >= 0 for item in listed):
            raise InputError(f"is {shown(value)}, expected a token id or a list of them", where=self.at(key))
        return tuple(listed)

    def _typed(self, key: str, types: tuple[type, ...], expected: str) -> JsonValue:
        value = self.value.get(key)
        if value is None or type(value) in types:  # not isinstance: true is no number
            return value
        raise InputError(f"is {shown(value)}, expected {expected}", where=self.at(key))

    def _present(self, key: str, value: JsonValue) -> JsonValue:
        if value is None:
            raise InputError(
                f"the required key {key!r} is missing",
                where=self.at() if self.pointer else self.path,
                remedy="take the file from the model's publisher",
            )
        return value


def shown(value: JsonValue) -> str:
    """The value as JSON, shortened for a message."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
