"""How a command of either room ends when something is wrong: one message, one exit code, no traceback, nothing left."""

import errno
import json
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from qpack_schemas.errors import BundleError, Finding, QpackError
from qpack_schemas.terminal import painted

INPUT_EXIT, USAGE_EXIT = 1, 2
SIGNAL_EXIT = 128  # plus the signal's number, as shells say it
# What a person can do about errors of the system, which name the file.
_SPACE = "free some space there, or name a place on another disk"
_RIGHTS = "give this user the right to it, or name another place"
REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EROFS: "name a place that may be written",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EFBIG: "name a place on a file system that takes large files",
}
# What ends a command early: Ctrl-C, a CI system that cancels, a terminal that is closed.
ENDING = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "the terminal was closed"}


class _Ended(KeyboardInterrupt):
    """A signal came; as Ctrl-C does in Python, it unwinds everything that cleans up behind itself."""

    def __init__(self, number: int):
        super().__init__()
        self.number = signal.Signals(number)


@contextmanager
def errors_reported(*, extra: str, as_json: bool = False) -> Generator[None]:
    """Turns errors meant for people into a line on stderr and an exit code; with `as_json` also into JSON on stdout.

    `extra` names the optional dependencies of the command, for the message when one is not installed. Signals that
    would end the process at once let it clean up first."""
    with _signals_raised():
        try:
            yield
        except QpackError as error:
            _exit(error, error.exit_code, as_json)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("qpack_"):
                raise
            message = f"this command needs {error.name}, which is not installed"
            _exit(QpackError(message, remedy=f"pip install 'qpack-llm[{extra}]'"), USAGE_EXIT, as_json)
        except KeyboardInterrupt as ended:
            number = ended.number if isinstance(ended, _Ended) else signal.SIGINT
            _exit(QpackError(ENDING[number]), SIGNAL_EXIT + number, as_json)
        except BrokenPipeError:  # the reader has seen enough, as `head` does: click ends quietly
            raise
        except OSError as error:
            where, remedy = str(error.filename or ""), REMEDIES.get(error.errno or 0, "")
            _exit(QpackError(error.strerror or str(error), where=where, remedy=remedy), INPUT_EXIT, as_json)


def error_json(error: QpackError, code: int) -> str:
    """The one document on stdout of a command that was asked for JSON and failed. What its message lists below the
    first line are findings; those of a bundle name their place."""
    message, *lines = error.message.split("\n")
    listed = [Finding("", line.strip()) for line in lines]
    findings = error.findings if isinstance(error, BundleError) else listed
    facts = {
        "message": message.removesuffix(":"),
        "where": error.where,
        "remedy": error.remedy,
        "exit_code": code,
        "findings": [{"where": finding.where, "message": finding.message} for finding in findings],
    }
    return json.dumps({"error": facts}, ensure_ascii=True)


def _exit(error: QpackError, code: int, as_json: bool) -> None:
    if as_json:
        print(error_json(error, code))
    print(painted(f"error: {error}", sys.stderr), file=sys.stderr)
    raise SystemExit(code)


@contextmanager
def _signals_raised() -> Generator[None]:
    """Within the block the signals of `ENDING` raise _Ended, those apart that are ignored, as by nohup."""
    usual = (signal.SIG_DFL, signal.default_int_handler)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: handler for number in ENDING if (handler := signal.getsignal(number)) in usual}
    for number in before:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, _: FrameType | None) -> None:
    """One that comes while another is cleaned up after is passed over: a second Ctrl-C must not leave half of it."""
    handled = sys.exception()
    while handled is not None:
        if isinstance(handled, _Ended):
            return
        handled = handled.__context__
    raise _Ended(number)
