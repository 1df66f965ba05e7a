"""Checkpoints whose digests take longer than all that is done beside them."""

from collections.abc import Callable
from threading import Event

import pytest

from qpack_packager.progress import Progress
from qpack_packager.source_files import SourceFiles


def hash_after(wait: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests are there when `wait` returns."""
    entry = SourceFiles._entry
    monkeypatch.setattr(SourceFiles, "_entry", lambda files, name: (wait(), entry(files, name))[1])


def hash_when_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests are there when the build shows that it waits for them."""
    shown, phase = Event(), Progress.phase

    def showing(progress, name, *total):
        if name == "source":
            shown.set()
        return phase(progress, name, *total)

    monkeypatch.setattr(Progress, "phase", showing)
    hash_after(shown.wait, monkeypatch)
