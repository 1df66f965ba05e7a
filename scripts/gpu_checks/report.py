"""check.json for machines, check.md for people: the same, the second with what matters on top."""

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qpack_schemas.targets import cuda_version

from .outcome import Line, Outcome, Settings

SHOWN = 20  # failures of a piece in check.md


@dataclass
class Checked:
    """A bundle and what its pieces said."""

    path: Path
    bundle_id: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)


@dataclass
class Report:
    gpu: Line | None  # None: there is none, `problem` says why
    settings: Settings
    bundles: list[Checked] = field(default_factory=list)
    problem: str = ""

    @property
    def failed(self) -> int:
        return sum(outcome.status == "failed" for one in self.bundles for outcome in one.outcomes.values())

    def write(self, folder: Path) -> None:
        """Both files, each whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "check.json", self.as_json())
        _replace(folder / "check.md", self.as_markdown())

    def as_json(self) -> str:
        bundles = [
            {
                "name": one.path.name,
                "bundle_id": one.bundle_id,
                "pieces": {name: {"status": o.status, **asdict(o)} for name, o in one.outcomes.items()},
            }
            for one in self.bundles
        ]
        document = {"gpu": self.gpu, "problem": self.problem, "settings": asdict(self.settings), "bundles": bundles}
        return json.dumps(_plain(document), indent=2, ensure_ascii=True, allow_nan=False) + "\n"

    def as_markdown(self) -> str:
        return "\n".join([*self._summary(), *(line for one in self.bundles for line in _section(one))]) + "\n"

    def _summary(self) -> list[str]:
        lines = ["# GPU check", ""]
        if self.gpu is None:
            return [*lines, f"Nothing was checked: {self.problem}"]
        pieces = [(one, name, o) for one in self.bundles for name, o in one.outcomes.items()]
        counts = {status: sum(o.status == status for _, _, o in pieces) for status in ("passed", "failed", "left out")}
        verdict = f"**{counts['failed']} of {len(pieces)} checks failed**" if self.failed else "**Nothing failed**"
        rest = f"{counts['passed']} passed and {counts['left out']} were left out, on {self.gpu['name']}"
        lines += [f"{verdict}: {rest} (sm_{self.gpu['sm']}), driver for CUDA {cuda_version(self.gpu['driver'])}.", ""]
        lines += ["| bundle | piece | | seconds | |", "|---|---|---|---|---|"]
        for one, name, outcome in pieces:
            cells = one.path.name, name, outcome.status, f"{outcome.seconds:.1f}", outcome.summary
            lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        return lines


def _section(one: Checked) -> list[str]:
    lines = ["", f"## {one.path.name}", "", f"bundle_id {one.bundle_id}"]
    for name, outcome in one.outcomes.items():
        lines += ["", f"### {name}: {outcome.status}", "", outcome.summary]
        for failure in outcome.failures[:SHOWN]:
            lines += ["", *(f"    {line}" for line in failure.splitlines())]
        if len(outcome.failures) > SHOWN:
            lines += ["", f"and {len(outcome.failures) - SHOWN} more, in check.json"]
        for title, table in outcome.tables.items():
            if table:
                lines += ["", f"{title}:", "", *_table(table)]
    return lines


def _table(table: list[Line]) -> list[str]:
    columns = list(table[0])
    body = ["| " + " | ".join(_cell(line[column]) for column in columns) + " |" for line in table]
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *body]


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(value: Any) -> Any:
    """As JSON has it: no infinity and no NaN, whose names stand for them, and Python's numbers."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):  # numpy's float64 too
        return float(value) if math.isfinite(value) else str(float(value))
    return value


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
