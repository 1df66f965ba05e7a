"""Which series a PromQL expression asks for: enough of the grammar for selectors, matchers and grouping labels."""

import re
from dataclasses import dataclass

GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
SELECTOR = re.compile(r"(?<![\w:.])([a-zA-Z_:][\w:]*)\s*(\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*\})?(\s*\()?")
MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"((?:[^\"\\]|\\.)*)\"")
KEYWORDS = {"and", "or", "unless", "offset", "bool"}


@dataclass(frozen=True)
class Selector:
    """A metric, and its matchers (label, operator, value)."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


def selectors(expression: str) -> list[Selector]:
    """All that `expression` selects; functions and keywords are none."""
    found = SELECTOR.findall(GROUPING.sub(" ", expression))
    return [
        Selector(name, tuple(MATCHER.findall(matchers)))
        for name, matchers, call in found
        if not call and name not in KEYWORDS
    ]


def grouping_labels(expression: str) -> set[str]:
    """Labels in `by (...)`, `on (...)` and the like."""
    return {label.strip() for labels in GROUPING.findall(expression) for label in labels.split(",")} - {""}
