"""`qpack diff`: how two bundles differ. Causes first, then tensors, then what only follows from them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from qpack_packager.commands.typeset import WIDTH, counted
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.strict_json import JsonValue

SHOWN = 12  # entries of one list; JSON has them all
CONSEQUENCES = ("memory", "files", "capture_order", "buffers", "checksum")  # they follow from the other fields
PLACEMENT = "file"  # the field of a tensor that says where it lies, and nothing about what it is
IDENTITIES = ("name", "path", "glob")  # keys that tell the objects of a list apart, wherever they stand
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """`pointer` leads into the manifest of a, or of b where a has no such value; `name` is that of a list's entry."""

    pointer: str
    name: str
    a: JsonValue
    b: JsonValue

    @property
    def top(self) -> str:
        """The field of the manifest that it belongs to."""
        return self.pointer.split("/")[1]

    def to_json(self) -> dict[str, JsonValue]:
        """Without `a` or `b` where there is no such value: null would be one."""
        sides = {side: value for side, value in (("a", self.a), ("b", self.b)) if value is not _ABSENT}
        return {"pointer": self.pointer, "name": self.name, **sides}

    def lines(self) -> list[str]:
        label = self.pointer + (f" ({self.name})" if self.name else "")
        if self.a is _ABSENT or self.b is _ABSENT:
            return [f"  {label}: only in {'b' if self.a is _ABSENT else 'a'}"]
        a, b = _shown(self.a), _shown(self.b)
        line = f"  {label}: {a} -> {b}"
        return [line] if len(line) <= WIDTH else [f"  {label}", f"    a {a}", f"    b {b}"]


def _shown(value: JsonValue) -> str:
    text, room = json.dumps(value, ensure_ascii=True), WIDTH - len("    a ")
    return text if len(text) <= room else text[: room - 3] + "..."


def compare(a: Path, b: Path, output_format: str) -> tuple[str, bool]:
    """The report, and whether the two are the same bundle. All bytes are hashed; raises BundleError for damage."""
    bundles = open_bundle(a), open_bundle(b)
    equal = bundles[0].bundle_id == bundles[1].bundle_id
    ours, theirs = (cast(dict[str, JsonValue], bundle.manifest) for bundle in bundles)
    tensors = _compare_tensors(ours["tensors"], theirs["tensors"])
    fields = list(differences(_without("tensors", ours), _without("tensors", theirs)))
    causes = [field for field in fields if field.top not in CONSEQUENCES]
    consequences = [field for top in CONSEQUENCES for field in fields if field.top == top]
    if output_format == "json":
        facts = {
            "equal": equal,
            **{side: _identity(bundle) for side, bundle in zip("ab", bundles, strict=True)},
            "causes": [field.to_json() for field in causes],
            "tensors": {
                fate: {name: [field.to_json() for field in found] for name, found in names.items()}
                for fate, names in tensors.items()
            },
            "consequences": [field.to_json() for field in consequences],
        }
        return json.dumps(facts, ensure_ascii=True), equal
    if equal:
        return f"the same bundle: {bundles[0].bundle_id}", True
    return "\n".join(_lines(bundles, causes, tensors, consequences)), False


def _identity(bundle: Bundle) -> dict[str, str]:
    return {"bundle": str(bundle.path), "bundle_id": bundle.bundle_id}


def _lines(
    bundles: Sequence[Bundle],
    causes: Sequence[Difference],
    tensors: Mapping[str, Mapping[str, Sequence[Difference]]],
    consequences: Sequence[Difference],
) -> Iterator[str]:
    for side, bundle in zip("ab", bundles, strict=True):
        yield f"{side}  {bundle.bundle_id}  {bundle.path}"
    if causes:
        yield from ("", f"Causes: {counted(len(causes), 'field')}", *_capped([field.lines() for field in causes]))
    if any(tensors.values()):
        yield from ("", "Tensors: " + ", ".join(f"{len(names):,} {fate}" for fate, names in tensors.items()))
        for fate, names in tensors.items():
            yield from _capped([[_tensor_line(fate, name, found)] for name, found in names.items()])
    if consequences:
        title = f"What follows: {counted(len(consequences), 'field')}"
        yield from ("", title, *_capped([field.lines() for field in consequences]))


def _tensor_line(fate: str, name: str, found: Sequence[Difference]) -> str:
    fields = ", ".join(field.pointer.rpartition("/")[2] for field in found)
    return f"  {fate:7}  {name}" + (f": {fields}" if fields else "")


def _capped(entries: Sequence[Sequence[str]]) -> Iterator[str]:
    for lines in entries[:SHOWN]:
        yield from lines
    if len(entries) > SHOWN:
        yield f"  ... and {len(entries) - SHOWN:,} more; --format json shows all"


def _compare_tensors(a: Mapping[str, JsonValue], b: Mapping[str, JsonValue]) -> dict[str, dict[str, list[Difference]]]:
    """By what they hold, wherever they lie: tensors by name, those that changed with their fields."""
    both = {
        name: list(
            differences(_without(PLACEMENT, a[name]), _without(PLACEMENT, b[name]), f"/tensors/{_escaped(name)}")
        )
        for name in sorted(a.keys() & b.keys())
    }
    return {
        "changed": {name: found for name, found in both.items() if found},
        "removed": {name: [] for name in sorted(a.keys() - b.keys())},
        "added": {name: [] for name in sorted(b.keys() - a.keys())},
    }


def _without(key: str, value: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {each: value[each] for each in value if each != key}


def differences(a: JsonValue, b: JsonValue, pointer: str = "", name: str = "") -> Iterator[Difference]:
    """Where two JSON values differ. `a` or `b` may be absent in what it yields, but not both."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            yield from differences(a.get(key, _ABSENT), b.get(key, _ABSENT), f"{pointer}/{_escaped(key)}", name)
    elif (key := _identifying_key(a, b)) is not None:
        ours, theirs = ({entry[key]: (place, entry) for place, entry in enumerate(side)} for side in (a, b))
        for each in sorted(ours.keys() | theirs.keys()):
            place = (ours.get(each) or theirs[each])[0]
            left, right = (side[each][1] if each in side else _ABSENT for side in (ours, theirs))
            yield from differences(left, right, f"{pointer}/{place}", each)
        if ours.keys() == theirs.keys() and list(ours) != list(theirs):
            yield Difference(pointer, "order", list(ours), list(theirs))
    elif a is _ABSENT or b is _ABSENT or json.dumps(a) != json.dumps(b):  # 1, 1.0 and true are equal to Python only
        yield Difference(pointer, name, a, b)


def _identifying_key(a: JsonValue, b: JsonValue) -> str | None:
    """The key whose values tell the entries of both lists apart, if they are lists of such objects."""
    if not (isinstance(a, list) and isinstance(b, list) and a + b and all(isinstance(entry, dict) for entry in a + b)):
        return None

    def identifies(key: str) -> bool:
        names = [[entry.get(key) for entry in side] for side in (a, b)]
        return all(isinstance(name, str) for side in names for name in side) and all(
            len(set(side)) == len(side) for side in names
        )

    return next(filter(identifies, IDENTITIES), None)


def _escaped(key: str) -> str:
    """A reference token of a JSON pointer (RFC 6901, section 3)."""
    return key.replace("~", "~0").replace("/", "~1")
