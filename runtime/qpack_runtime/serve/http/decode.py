"""POST /v1/chat/completions and /v1/completions: a request becomes jobs, their events an answer."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from qpack_runtime.serve.engine.job import Event, Job
from qpack_runtime.serve.http.answer import Part
from qpack_runtime.serve.http.answer_response import Answer, Unasked
from qpack_runtime.serve.http.api_error import ApiError
from qpack_runtime.serve.http.body import parsed, read_body
from qpack_runtime.serve.http.logprobs import Spelling
from qpack_runtime.serve.http.requests import ChatRequest, CompletionRequest, Decoding, parse_chat, parse_completion
from qpack_runtime.serve.http.shapes import ChatShape, CompletionShape
from qpack_runtime.serve.logs import log
from qpack_runtime.serve.service import Service
from qpack_runtime.serve.text.tool_calls import ToolCallParser

SEEDS = 2**64
Asked = TypeVar("Asked", ChatRequest, CompletionRequest)


class Decode:
    """The endpoints of one server."""

    def __init__(self, service: Service, *, log_prompts: bool):
        self._service, self._log_prompts = service, log_prompts

    async def chat(self, request: Request) -> Response:
        asked = await self._asked(request, parse_chat)
        served, decoding = self._service.served, asked.decoding
        if asked.use_tools and decoding.response_format is not None:
            problem = "an answer that follows response_format can't hold tool calls; set tool_choice to none"
            raise ApiError(400, problem, param="response_format")
        text = await served.render(asked.messages, asked.tools, asked.template_variables)
        ids = await served.tokens.prompt(text, special=False)
        self._log_prompt(request, text)
        jobs = await self._jobs(request, [ids], decoding)
        parts = [Part(index, len(ids)) for index in range(len(jobs))]
        if asked.use_tools:
            thinking = text.rstrip().endswith("<think>")  # as Qwen3.5's prompts do
            for part in parts:
                part.tool_parser = ToolCallParser(asked.tools or [], thinking=thinking)
        return self._answer(jobs, parts, decoding, ChatShape)

    async def completion(self, request: Request) -> Response:
        asked = await self._asked(request, parse_completion)
        served, decoding = self._service.served, asked.decoding
        prompts = []
        for prompt in asked.prompts:
            if isinstance(prompt, str):
                prompts.append(await served.tokens.prompt(prompt, special=True))
                self._log_prompt(request, prompt)
            else:
                served.tokens.require_room(prompt)
                prompts.append(prompt)
        parts = [
            Part(index, len(prompts[index // decoding.n]), self._echoed(asked.prompts[index // decoding.n], asked.echo))
            for index in range(len(prompts) * decoding.n)
        ]
        if decoding.max_tokens == 0:
            return Unasked(parts, self._shape(CompletionShape, decoding), decoding)
        jobs = await self._jobs(request, prompts, decoding)
        return self._answer(jobs, parts, decoding, CompletionShape)

    async def _asked(self, request: Request, parse: Callable[[bytes, Mapping[str, float]], Asked]) -> Asked:
        body = await read_body(request)
        self._service.require_ready()
        served = self._service.served
        asked = await parsed(parse, body, served.defaults)
        served.require(asked.model)
        return asked

    def _echoed(self, prompt: str | list[int], echo: bool) -> str:
        if not echo:
            return ""
        return prompt if isinstance(prompt, str) else self._service.served.text(prompt)

    async def _jobs(self, request: Request, prompts: list[list[int]], decoding: Decoding) -> list[Job]:
        """One for each sequence: n of each prompt, whose seeds follow each other."""
        served = self._service.served
        served.tokens.require_known(list(decoding.options.logit_bias), where="logit_bias")
        grammars = await served.grammars_of(decoding.response_format, len(prompts) * decoding.n)
        return [
            Job(
                prompt=prompts[index // decoding.n],
                options=replace(decoding.options, seed=(decoding.options.seed + index % decoding.n) % SEEDS),
                max_tokens=min(
                    decoding.max_tokens or served.context, served.context - len(prompts[index // decoding.n])
                ),
                deliver=_undelivered,
                stop=decoding.stop,
                grammar=grammar,
                client=request.state.client,
                session=decoding.session,
            )
            for index, grammar in enumerate(grammars)
        ]

    def _answer(
        self, jobs: list[Job], parts: list[Part], decoding: Decoding, shape_of: type[ChatShape | CompletionShape]
    ) -> Response:
        return Answer(self._service, jobs, parts, self._shape(shape_of, decoding), decoding)

    def _shape(self, shape_of: type[ChatShape | CompletionShape], decoding: Decoding) -> ChatShape | CompletionShape:
        served = self._service.served
        return shape_of(
            served.name,
            served.fingerprint,
            decoding.options.seed,
            Spelling(served.booted.token_bytes, served.booted.tokenizer),
            decoding.top_logprobs,
            decoding.stream and decoding.include_usage,
        )

    def _log_prompt(self, request: Request, text: str) -> None:
        if self._log_prompts:
            log("prompt", request_id=request.state.request_id, text=text)


def _undelivered(event: Event) -> None:
    """Nobody hears of a job that was not handed over."""
