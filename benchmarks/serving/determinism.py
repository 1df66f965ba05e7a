"""An answer must not depend on who else is answered: what each request gets alone, and what it gets in the load."""

from collections.abc import Sequence

from qpack_schemas.errors import QpackError

from .answer import Answer

SHOWN = 3  # requests of an error message


def require_same(server: str, alone: Sequence[Answer], loaded: Sequence[Answer]) -> None:
    """Raises QpackError unless every request has the same text of as many tokens both times, and no failure."""
    lines = [
        f"  request {index}: {_difference(one, other)}"
        for index, (one, other) in enumerate(zip(alone, loaded, strict=True))
        if one.failure or other.failure or (one.text, one.tokens) != (other.text, other.tokens)
    ]
    if lines:
        more = [f"  ... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        count = f"{len(lines)} of {len(alone)} requests are answered otherwise in the load than alone:"
        raise QpackError("\n".join([count, *lines[:SHOWN], *more]), where=server)


def _difference(alone: Answer, loaded: Answer) -> str:
    for answer, when in ((alone, "alone"), (loaded, "in the load")):
        if answer.failure:
            return f"{answer.failure} {when} {answer.message}".rstrip()
    place = next((i for i, pair in enumerate(zip(alone.text, loaded.text, strict=False)) if pair[0] != pair[1]), 0)
    found = [f"{answer.tokens} tokens with {answer.text[place : place + 40]!r}" for answer in (alone, loaded)]
    return f"from character {place} on {found[0]} alone, {found[1]} in the load"
