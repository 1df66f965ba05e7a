"""What a piece is told, and what it says."""

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "left out"]
Line = dict[str, Any]  # of a table: column -> text or number


@dataclass(frozen=True)
class Settings:
    """The flags of the script."""

    steps: int  # timed, per decode bucket and way to launch
    decode_steps: int  # of the determinism piece
    boots: int
    tokens: int  # per prompt, compared with the reference
    prompt: int  # tokens of the longest prompt
    allow_ptx: bool


@dataclass
class Outcome:
    """`tables` by title; the lines of a table all have the same columns."""

    summary: str
    failures: list[str] = field(default_factory=list)
    tables: dict[str, list[Line]] = field(default_factory=dict)
    left_out: bool = False
    seconds: float = 0.0

    @property
    def status(self) -> Status:
        if self.failures:
            return "failed"
        return "left out" if self.left_out else "passed"
