"""The application: which path is answered by whom, and how an error leaves it."""

from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from qpack_runtime.serve.http.api_error import ApiError, as_api_error
from qpack_runtime.serve.http.body import error_response
from qpack_runtime.serve.http.decode import Decode
from qpack_runtime.serve.http.gate import Gate
from qpack_runtime.serve.http.keys import ApiKeys
from qpack_runtime.serve.http.page import Page
from qpack_runtime.serve.http.state import State
from qpack_runtime.serve.http.tokens import Tokens
from qpack_runtime.serve.logs import log
from qpack_runtime.serve.service import Service
from qpack_schemas.errors import QpackError

ENDPOINTS = frozenset({
    "/", "/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/detokenize", "/livez", "/startupz",
    "/readyz", "/metrics", "/stats", "/openapi.json",
})  # fmt: skip


def make_app(service: Service, keys: ApiKeys | None, *, only_loopback_names: bool, log_prompts: bool) -> ASGIApp:
    decode, tokens, state, page = Decode(service, log_prompts=log_prompts), Tokens(service), State(service), Page()
    document = files("qpack_runtime.serve.http").joinpath("openapi.json").read_bytes()

    async def openapi(request: Request) -> Response:
        return Response(document, media_type="application/json")

    routes = [
        Route("/v1/chat/completions", decode.chat, methods=["POST"]),
        Route("/v1/completions", decode.completion, methods=["POST"]),
        Route("/v1/models", tokens.models),
        Route("/v1/models/{model:path}", tokens.model),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/livez", state.livez),
        Route("/startupz", state.startupz),
        Route("/readyz", state.readyz),
        Route("/metrics", state.metrics),
        Route("/stats", state.stats),
        Route("/openapi.json", openapi),
        Route("/", page.index),
        Route("/page/{name}", page.file),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            ApiError: _api_error, QpackError: _qpack_error, HTTPException: _http_error, ClientDisconnect: _gone,
            Exception: _unforeseen,
        },
    )  # fmt: skip
    app.router.redirect_slashes = False
    return Gate(app, service.metrics, keys, ENDPOINTS, only_loopback_names)


# Coroutines, since Starlette takes a thread for each answer of a plain function.


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _qpack_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, QpackError)
    answer = as_api_error(error)
    if answer.status >= 500:
        log("request_failed", request_id=request.state.request_id, reason=str(error))
    return error_response(answer)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = {404: "there is nothing at this path", 405: "this path doesn't know the method"}
    headers = dict(error.headers or {})
    return error_response(ApiError(error.status_code, problem.get(error.status_code, error.detail), headers=headers))


async def _gone(request: Request, error: Exception) -> Response:
    """For the log and the metrics: nobody reads it."""
    return Response(status_code=499)


async def _unforeseen(request: Request, error: Exception) -> Response:
    log("request_failed", request_id=request.state.request_id, error=error)
    return error_response(ApiError(500, "the server failed at this request; its log says why"))
