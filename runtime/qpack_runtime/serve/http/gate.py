"""What every request passes: its id, who sent it, the headers of its answer, and its line in the log."""

import asyncio
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qpack_runtime.serve.http.api_error import ApiError
from qpack_runtime.serve.http.body import error_response
from qpack_runtime.serve.http.keys import ApiKeys
from qpack_runtime.serve.logs import log
from qpack_runtime.serve.metrics import Metrics

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
OPEN = {"/", "/livez", "/startupz", "/readyz", "/metrics", "/openapi.json"}  # without a key, as is the page's /page/
LOOPBACK_NAMES = {"localhost", "127.0.0.1", "[::1]"}
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
API_HEADERS = {"content-security-policy": "default-src 'none'; frame-ancestors 'none'", "cache-control": "no-store"}
UNLOGGED = {"/livez", "/startupz", "/readyz", "/metrics", "/stats"}  # asked every few seconds, unless they fail


class Gate:
    """Around the whole application. `endpoints` are the routes that metrics tell apart; with `only_loopback_names` a
    request must name this host as such, so that a page elsewhere can't reach it under a name of its own."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, keys: ApiKeys | None, endpoints: frozenset[str], only_loopback_names: bool
    ):
        self._app, self._metrics, self._keys, self._endpoints = app, metrics, keys, endpoints
        self._only_loopback_names = only_loopback_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no web sockets here
            return
        begin, headers = time.perf_counter(), Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if REQUEST_ID.fullmatch(asked) else uuid.uuid4().hex
        scope["state"] = {"request_id": request_id, "client": scope["client"][0] if scope["client"] else ""}
        status = 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                for name, value in (HEADERS | API_HEADERS | {"x-request-id": request_id}).items():
                    answered.setdefault(name, value)
            await send(message)

        try:
            if (refusal := self._refusal(scope, headers)) is not None:
                await error_response(refusal)(scope, receive, send_on)
            else:
                await self._app(scope, receive, send_on)
        except asyncio.CancelledError:  # the process ends and waits no longer
            if not status:
                refusal = ApiError(503, "the server is shutting down", code="drain")
                await error_response(refusal)(scope, receive, send_on)
        finally:
            self._account(scope, 499 if scope["state"].get("left") else status or 500, time.perf_counter() - begin)

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        if self._only_loopback_names:
            host = headers.get("host", "")
            if re.sub(r":\d+$", "", host).lower() not in LOOPBACK_NAMES:
                return ApiError(400, f"the host name {host!r:.80} is not this host's", code="wrong_host")
        path = scope["path"]
        if self._keys is None or path in OPEN or path.startswith("/page/"):
            return None
        client = self._keys.client(headers.get("authorization"))
        if client is None:
            problem = "the API key is wrong" if "authorization" in headers else "an API key is needed"
            return ApiError(401, f"{problem}; send it as `Authorization: Bearer KEY`", "authentication_error",
                            code="invalid_api_key", headers={"www-authenticate": "Bearer"})  # fmt: skip
        scope["state"]["client"] = client
        return None

    def _account(self, scope: Scope, status: int, seconds: float) -> None:
        path, state = scope["path"], scope["state"]
        route = path if path in self._endpoints else "other"
        self._metrics.response(route, status)
        if path not in UNLOGGED or status >= 500:
            usage = state.get("usage") or {}
            log(
                "request", request_id=state["request_id"], client=state["client"], method=scope["method"],
                path=path[:200], status=status, seconds=round(seconds, 6), prompt_tokens=usage.get("prompt_tokens"),
                completion_tokens=usage.get("completion_tokens"),
            )  # fmt: skip
