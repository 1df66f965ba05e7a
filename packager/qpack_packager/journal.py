"""What a build has done so far, so that one that is interrupted can go on: a line for each finished weight module.

The journal lies in a work directory beside the unfinished bundle, which stays until the bundle is in place. Its first
line is the fingerprint of everything that the weights depend on: a build that differs in any of it starts anew.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO, cast

from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import JsonValue, dump_compact, parse_strict

ACTIVATIONS = "activations"  # of a calibrated build, beside the journal
_NAME = "journal.jsonl"


def work_of(folder: Path) -> Path:
    """The work directory of the unfinished bundle in `folder`."""
    return folder.with_name(f"{folder.name}.work")


def is_left(folder: Path) -> bool:
    """Whether the unfinished bundle in `folder` has a journal."""
    return (work_of(folder) / _NAME).exists()


def is_left_by(folder: Path, wanted: str) -> bool:
    """Whether the unfinished bundle in `folder` is one with this fingerprint."""
    lines = _lines(work_of(folder) / _NAME)
    return bool(lines) and lines[0].get("fingerprint") == wanted


class Journal:
    """`finished`: module -> its line, in the order in which they were made.

    The fingerprint `mark` may be known only later, and nothing is written before it is: a build that dies until then
    leaves nothing to go on from."""

    def __init__(self, folder: Path, mark: Future[str]):
        self._path, self._mark = work_of(folder) / _NAME, mark
        self._file: BinaryIO | None = None
        lines = _lines(self._path)[1:] if is_left(folder) and is_left_by(folder, mark.result()) else []
        self.finished = {str(line["module"]): line for line in lines}
        self._unwritten: list[Mapping[str, object]] = [*lines]

    def enter(self, module: str, tensors: Mapping[str, str], log: Mapping[str, object] | None) -> None:
        """A module is finished: the sha256 of its tensors, and its line of the quantization log."""
        self._unwritten.append({"module": module, "tensors": dict(tensors), "log": log})
        if not self._mark.done():
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb")  # anew, so that half a line at its end is gone
            self._unwritten.insert(0, {"fingerprint": self._mark.result()})
        self._file.write(b"".join(map(dump_compact, self._unwritten)))
        self._file.flush()
        self._unwritten.clear()

    def close(self) -> None:
        if self._file:
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
