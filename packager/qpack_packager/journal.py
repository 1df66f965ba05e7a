"""What a build has done so far, so that one that is interrupted can go on: a line for each finished weight module.

The journal lies in the directory of the unfinished bundle. Its first line is the fingerprint of everything that the
bundle depends on: a build that differs in any of it starts anew.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import JsonValue, dump_compact, parse_strict

WORK = ".build"  # within the unfinished bundle: what is gone before it is sealed
_NAME = "journal.jsonl"


def is_left_by(folder: Path, wanted: str) -> bool:
    """Whether the unfinished bundle in `folder` is one with this fingerprint."""
    lines = _lines(folder / WORK / _NAME)
    return bool(lines) and lines[0].get("fingerprint") == wanted


class Journal:
    """`finished`: module -> its line, in the order in which they were made."""

    def __init__(self, folder: Path, mark: str):
        path = folder / WORK / _NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = is_left_by(folder, mark)
        lines = _lines(path)[1:] if begun else []
        self.finished = {str(line["module"]): line for line in lines}
        # Written anew, so that half a line at its end is gone.
        path.write_bytes(b"".join(map(dump_compact, [{"fingerprint": mark}, *lines])))
        self._file = path.open("ab")

    def enter(self, module: str, tensors: Mapping[str, str], log: Mapping[str, object] | None) -> None:
        """A module is finished: the sha256 of its tensors, and its line of the quantization log."""
        self._file.write(dump_compact({"module": module, "tensors": dict(tensors), "log": log}))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _lines(path: Path) -> list[dict[str, JsonValue]]:
    """Whole lines only: a build may die while it writes one."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    lines: list[dict[str, JsonValue]] = []
    for line in raw.split(b"\n")[:-1]:
        try:
            lines.append(cast(dict[str, JsonValue], parse_strict(line.decode("utf-8"), str(path))))
        except (InputError, UnicodeDecodeError):
            break
    return lines
