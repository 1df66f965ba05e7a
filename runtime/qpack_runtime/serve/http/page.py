"""The chat page: its files, read once, under names that are known beforehand."""

from collections.abc import Mapping
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

KINDS = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
INDEX = "index.html"


class Page:
    """Nothing that a request says is ever part of a path: it can only name a key of `_files`."""

    def __init__(self) -> None:
        folder = files("qpack_runtime.serve").joinpath("page")
        self._files: Mapping[str, tuple[bytes, str]] = {
            entry.name: (entry.read_bytes(), KINDS[suffix])
            for entry in folder.iterdir()
            if (suffix := entry.name[entry.name.rfind(".") :]) in KINDS
        }

    async def index(self, request: Request) -> Response:
        return self._response(INDEX)

    async def file(self, request: Request) -> Response:
        return self._response(request.path_params["name"])

    def _response(self, name: str) -> Response:
        if name not in self._files:
            return Response("there is no such file", 404, media_type="text/plain")
        content, kind = self._files[name]
        headers = {"content-type": kind, "content-security-policy": POLICY, "cache-control": "no-cache"}
        return Response(content, headers=headers)
