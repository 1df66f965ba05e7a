"""Errors as a client sees them: an HTTP status and a body in the shape of OpenAI's API."""

import re
from collections.abc import Mapping
from typing import Any

from qpack_schemas.errors import FitError, QpackError, UnsupportedError, UsageError
from qpack_schemas.strict_json import JsonError

_MOST = 1000  # characters of a message, which may quote what a client sent
_FIELD = re.compile(r"[a-z_]+(\[\d+\]|\.\w+)*")  # `messages[3].content`, and no file's path


class ApiError(Exception):
    """An answer that is an error. `type` follows from the status if it isn't given; `param` names the field to blame,
    as in `messages[3].content`; `code` is a word for programs; `headers` go out with the answer."""

    def __init__(
        self,
        status: int,
        message: str,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        if len(message) > _MOST:
            message = f"{message[: _MOST // 2]} ... {message[-_MOST // 2 :]}"
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.type = type or _type_of(status)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON value of the answer's body; also what a stream sends that fails after it has begun."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def as_api_error(error: QpackError) -> ApiError:
    """What a client is told of an error of qpack's: 400 with message and remedy where the request is to blame, else 500
    without a detail, since a message about the bundle or the host is for whoever runs the server."""
    if not isinstance(error, (UsageError, UnsupportedError, FitError, JsonError)):
        return ApiError(500, "the server failed at this request; its log says why")
    message = f"{error.message}; {error.remedy}" if error.remedy else error.message
    return ApiError(400, message, param=error.where if _FIELD.fullmatch(error.where) else None)


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
