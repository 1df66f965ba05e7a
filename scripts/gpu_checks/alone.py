"""A function in a process of its own: its GPU context has no errors of others, and its crash ends nothing else."""

import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from qpack_schemas.errors import QpackError

LIMIT_SECONDS = 900  # a kernel that never ends must not keep the report


class AloneError(Exception):
    """The function raised, or its process ended. `exit_code` is that of a QpackError, otherwise 1."""

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function of a module's top level. Raises AloneError."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(LIMIT_SECONDS):
            process.kill()
            raise AloneError(f"no answer after {LIMIT_SECONDS} s: the process was ended")
        result, message, exit_code = receiver.recv()
    except EOFError:
        process.join()
        raise AloneError(f"the process ended with exit code {process.exitcode} and said nothing") from None
    finally:
        process.join()
        receiver.close()
    if message:
        raise AloneError(message, exit_code)
    return result


def _answer(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = function(*arguments), "", 0
    except QpackError as error:
        answer = None, str(error), error.exit_code
    except Exception:
        answer = None, traceback.format_exc(), 1
    sender.send(answer)
    sender.close()
