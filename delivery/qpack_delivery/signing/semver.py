"""Versions of bundles, in the order of Semantic Versioning 2.0 (semver.org, item 11)."""

import re

# Any number of dotted numbers where SemVer has three; those that are left out are 0. Bounded, since converting digits
# takes quadratic time.
_NUMBER = r"(?:0|[1-9][0-9]{0,17})"
_WORD = r"[0-9]*[A-Za-z-][0-9A-Za-z-]*"
_VERSION = re.compile(
    rf"(?P<numbers>{_NUMBER}(?:\.{_NUMBER})*)"
    rf"(?:-(?P<pre>(?:{_NUMBER}|{_WORD})(?:\.(?:{_NUMBER}|{_WORD}))*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
LONGEST = 128  # characters
GRAMMAR = "dotted numbers with an optional pre-release, such as 1.4.0 or 1.4.0-rc.1"

Precedence = tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]


def is_version(text: str) -> bool:
    return len(text) <= LONGEST and _VERSION.fullmatch(text) is not None


def precedence(version: str) -> Precedence:
    """A value that sorts as the versions do. What stands behind a `+` doesn't count."""
    found = _VERSION.fullmatch(version)
    assert found, version
    numbers = [int(number) for number in found["numbers"].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    words = found["pre"].split(".") if found["pre"] else []
    identifiers = tuple((False, int(w), "") if w.isdigit() else (True, 0, w) for w in words)  # numbers before words
    return tuple(numbers), not words, identifiers
