"""Log lines as JSON, one object a line on stderr. What a request says or gets is never in them unless asked for."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

LOGGER = logging.getLogger("qpack")


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.name != LOGGER.name:
            line["logger"] = record.name
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def log(event: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """One line. `error` adds its traceback."""
    LOGGER.log(level, event, extra={"fields": _present(fields)}, exc_info=error)


def log_to_stderr() -> None:
    """Sends the lines of qpack and of the HTTP library to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_AsJson())
    for logger, level in ((LOGGER, logging.INFO), (logging.getLogger("uvicorn"), logging.WARNING)):
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
