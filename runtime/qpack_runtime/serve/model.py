"""The booted bundle as requests see it: its name, its sampling defaults, its template, tokenizer and grammars."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from importlib.metadata import version
from typing import Any

from qpack_runtime.boot import Booted
from qpack_runtime.chat import check_messages
from qpack_runtime.detokenizer import Detokenizer
from qpack_runtime.sampling_options import SamplingOptions
from qpack_runtime.serve.engine.job import Grammar
from qpack_runtime.serve.http.api_error import ApiError
from qpack_runtime.serve.logs import log
from qpack_runtime.serve.text.grammar import Grammars
from qpack_runtime.serve.text.prompt_tokens import PromptTokens
from qpack_runtime.serve.text.template_process import TemplateProcess
from qpack_schemas.errors import UsageError
from qpack_schemas.strict_json import load_strict

GENERATION_CONFIG = "model/generation_config.json"
# What a request gets that says nothing, where the model's authors say nothing: OpenAI's defaults.
NEUTRAL: dict[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


class ServedModel:
    """Lives on the event loop. `name` is the model's in the API; `thread` is where tokenizer and grammars
    work."""

    def __init__(self, booted: Booted, name: str, template: TemplateProcess, thread: Executor):
        manifest = booted.bundle.manifest
        self.booted, self.name = booted, name
        self.context = booted.engine.context
        self.created = int(time.time())
        self.mode: str = booted.facts.get("mode") or booted.facts.get("target", "")  # how the device computes
        self.fingerprint = f"qpack-{version('qpack-llm')}-{booted.device}-{self.mode}-{booted.bundle.bundle_id[:16]}"
        self.defaults = _defaults(booted)
        self.tokens = PromptTokens(booted.tokenizer, booted.token_bytes, self.context, booted.engine.vocab, thread)
        self._template = template
        self._grammars = Grammars(booted.tokenizer, booted.engine.vocab, manifest["model"]["eos_token_ids"])
        self._thread = thread

    def require(self, model: str | None) -> None:
        """Raises ApiError 404 for a model that isn't this one."""
        if model not in (None, self.name):
            raise ApiError(404, f"there is no model {model!r:.80}; this server has {self.name!r}",
                           param="model", code="model_not_found")  # fmt: skip

    async def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt of a conversation. Raises UsageError if the template refuses it."""
        checked = check_messages(list(messages), "messages")
        return await self._template.render(checked, tools, variables, add_generation_prompt=add_generation_prompt)

    def text(self, ids: Sequence[int]) -> str:
        """The text of tokens, whole characters only."""
        detokenizer = Detokenizer(self.booted.token_bytes)
        return "".join(map(detokenizer.push, ids))

    async def grammars_of(self, response_format: Mapping[str, Any] | None, sequences: int) -> Sequence[Grammar | None]:
        """A grammar for each sequence of a request. Raises UsageError for one that can't be had."""
        if response_format is None:
            return [None] * sequences
        compiling = asyncio.get_running_loop().run_in_executor(self._thread, self._grammars.compile, response_format)
        grammar = await compiling
        return [grammar, *(grammar.copy() for _ in range(sequences - 1))]


def _defaults(booted: Booted) -> dict[str, float]:
    """What the bundle's generation_config.json recommends; one that can't be had here is left out, and logged."""
    defaults, path = dict(NEUTRAL), booted.bundle.path / GENERATION_CONFIG
    recommended = load_strict(path) if path.is_file() else {}
    assert isinstance(recommended, dict)  # the build has seen to it
    for name in NEUTRAL.keys() & recommended.keys():
        if (value := recommended[name]) is None:
            continue
        try:
            SamplingOptions(**{name: value})
            defaults[name] = value
        except UsageError as error:
            log("default_left_out", option=name, value=value, reason=error.message)
    return defaults
