"""Random changes to JSON documents, for tests that whatever is changed is refused or sound."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 600)
    | st.sampled_from([2**31 - 1, 2**31, 2**53, 2**64, 10**400, 0.0, 1e-6, 4.0, 1e308, "", "R", "1.0", "0.1.0", "../x"])
    | st.text(max_size=4)
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        document = document[part]
    return document


def mutate(data: st.DataObject, document: Any) -> None:
    """One change: another value, a value from elsewhere in the document, a deletion or a copy."""
    every = list(places(document))
    path = data.draw(st.sampled_from(every), label="place")
    parent, key = at(document, path[:-1]), path[-1]
    match data.draw(st.sampled_from(["value", "elsewhere", "sibling", "delete", "double", "nudge"]), label="change"):
        case "value":
            parent[key] = data.draw(VALUES)
        case "elsewhere":
            parent[key] = copy.deepcopy(at(document, data.draw(st.sampled_from(every), label="from")))
        case "sibling":
            other = data.draw(st.sampled_from(list(parent) if isinstance(parent, dict) else list(range(len(parent)))))
            parent[key], parent[other] = parent[other], parent[key]
        case "delete":
            del parent[key]
        case "double" if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        case "double":
            parent[data.draw(st.text("abx-_.", min_size=1, max_size=5))] = copy.deepcopy(parent[key])
        case _:
            if type(parent[key]) is int:
                parent[key] += data.draw(st.sampled_from([-256, -1, 1, 256, 4096]))
