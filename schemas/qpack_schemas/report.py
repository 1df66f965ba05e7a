"""How a command of either room ends when something is wrong: one message, one exit code, no traceback."""

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager

from qpack_schemas.errors import BundleError, QpackError

INPUT_EXIT, USAGE_EXIT = 1, 2
INTERRUPTED_EXIT = 130  # 128 + SIGINT, as shells say it


@contextmanager
def errors_reported(*, extra: str, as_json: bool = False) -> Generator[None]:
    """Turns errors meant for people into a line on stderr and an exit code; with `as_json` also into JSON on stdout.

    `extra` names the optional dependencies of the command, for the message when one is not installed."""
    try:
        yield
    except QpackError as error:
        _exit(error, error.exit_code, as_json)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("qpack_"):
            raise
        message = f"this command needs {error.name}, which is not installed"
        _exit(QpackError(message, remedy=f"pip install 'qpack-llm[{extra}]'"), USAGE_EXIT, as_json)
    except KeyboardInterrupt:
        _exit(QpackError("interrupted"), INTERRUPTED_EXIT, as_json)
    except BrokenPipeError:  # the reader has seen enough, as `head` does: click ends quietly
        raise
    except OSError as error:
        _exit(QpackError(error.strerror or str(error), where=str(error.filename or "")), INPUT_EXIT, as_json)


def _exit(error: QpackError, code: int, as_json: bool) -> None:
    if as_json:
        findings = error.findings if isinstance(error, BundleError) else []
        facts = {
            "message": error.message.partition("\n")[0].removesuffix(":"),
            "where": error.where,
            "remedy": error.remedy,
            "exit_code": code,
            "findings": [{"where": finding.where, "message": finding.message} for finding in findings],
        }
        print(json.dumps({"error": facts}, ensure_ascii=True))
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(code)
