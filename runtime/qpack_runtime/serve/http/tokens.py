"""GET /v1/models, POST /tokenize and /detokenize: what doesn't decode."""

from starlette.requests import Request
from starlette.responses import Response

from qpack_runtime.serve.http.body import json_response, parsed, read_body
from qpack_runtime.serve.http.requests import parse_detokenize, parse_tokenize
from qpack_runtime.serve.service import Service


class Tokens:
    """The endpoints of one server."""

    def __init__(self, service: Service):
        self._service = service

    async def models(self, request: Request) -> Response:
        self._service.require_ready()
        return json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._service.require_ready()
        self._service.served.require(request.path_params["model"])
        return json_response(self._model())

    async def tokenize(self, request: Request) -> Response:
        body = await read_body(request)
        self._service.require_ready()
        served, asked = self._service.served, await parsed(parse_tokenize, body)
        served.require(asked.model)
        if asked.messages is not None:
            text = await served.render(
                asked.messages,
                asked.tools,
                asked.template_variables,
                add_generation_prompt=asked.add_generation_prompt,
            )
        else:
            assert asked.prompt is not None
            text = asked.prompt
        ids = await served.tokens.encode(text, special=asked.add_special_tokens)
        return json_response({"count": len(ids), "max_model_len": served.context, "tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        body = await read_body(request)
        self._service.require_ready()
        served, asked = self._service.served, await parsed(parse_detokenize, body)
        served.require(asked.model)
        served.tokens.require_known(asked.tokens)
        return json_response({"prompt": served.text(asked.tokens)})

    def _model(self) -> dict[str, object]:
        served = self._service.served
        return {
            "id": served.name, "object": "model", "created": served.created, "owned_by": "qpack",
            "max_model_len": served.context,
        }  # fmt: skip
