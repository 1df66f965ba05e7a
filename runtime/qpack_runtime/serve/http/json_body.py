"""A request's body as a JSON value."""

from qpack_runtime.serve.http.api_error import ApiError
from qpack_schemas.strict_json import JsonError, JsonValue, parse_strict

MOST_LEVELS = 100  # of nesting, so that whoever walks a value later is safe from Python's limit


def read_json(body: bytes) -> JsonValue:
    """The value of a body that is strict JSON in UTF-8, nested at most MOST_LEVELS deep. Raises ApiError 400."""
    if body.startswith(b"\xef\xbb\xbf"):
        raise ApiError(400, "the body begins with a byte order mark; send UTF-8 without one")
    try:
        value = parse_strict(body.decode("utf-8"), "the body")
    except UnicodeDecodeError as error:
        found = f"byte 0x{body[error.start]:02x} at offset {error.start}"
        raise ApiError(400, f"the body is not UTF-8: {found}; send JSON in UTF-8") from None
    except JsonError as error:
        raise ApiError(400, f"the body is not valid JSON: {error.message}") from None
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MOST_LEVELS):
        if not level:
            break
        children = (child for parent in level for child in (parent.values() if isinstance(parent, dict) else parent))
        level = [child for child in children if isinstance(child, (dict, list))]
    if level:
        raise ApiError(400, f"the body is nested more than {MOST_LEVELS} levels deep")
    return value
