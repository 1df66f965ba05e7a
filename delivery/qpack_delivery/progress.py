"""What this room tells of long work, to whoever shows it: the packager's bars and lines, or nobody."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol


class Step(Protocol):
    def __call__(self, unit: str, amount: int = 1, /) -> None:
        """`unit` has just been finished; it was `amount` of the phase's total."""


class Progress(Protocol):
    """Both are called by one thread."""

    def note(self, message: str) -> None:
        """Something a person should know that is no error."""

    def phase(self, name: str, total: int, unit: Literal["", "bytes"] = "") -> AbstractContextManager[Step]:
        """A phase of `total` units of work."""
        ...


class Silent:
    """Progress that nobody watches."""

    def note(self, message: str) -> None:
        pass

    @contextmanager
    def phase(self, name: str, total: int, unit: Literal["", "bytes"] = "") -> Iterator[Step]:
        yield lambda unit, amount=1: None
