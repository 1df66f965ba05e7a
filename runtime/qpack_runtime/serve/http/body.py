"""The bytes of a request's body within their limits, and JSON as the body of an answer."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from qpack_runtime.serve.http.api_error import ApiError

T = TypeVar("T")
MOST_BYTES = 4 << 20
AT_ONCE_BYTES = 1 << 16
SECONDS = 30.0  # from the head of a request to the end of its body


async def read_body(request: Request) -> bytes:
    """The body of a request that says it sends JSON, which no page of another origin can do without asking first.

    Raises ApiError 415 if it says something else, 413 beyond MOST_BYTES, 408 for a body that doesn't come in time."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"the content type is {kind[:80]!r}; send application/json")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > MOST_BYTES:
        raise _too_large(f"{int(length)} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MOST_BYTES:
                    raise _too_large("larger")
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {SECONDS:.0f} s") from None
    return bytes(body)


async def parsed(parse: Callable[..., T], body: bytes, *arguments: Any) -> T:
    """`parse` of a body, off the loop where it may take long."""
    if len(body) <= AT_ONCE_BYTES:
        return parse(body, *arguments)
    return await asyncio.to_thread(parse, body, *arguments)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(dump(value), status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    return json_response(error.body(), error.status, error.headers)


def dump(value: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")


def _too_large(size: str) -> ApiError:
    return ApiError(413, f"the body is {size}; at most {MOST_BYTES} bytes are taken")
