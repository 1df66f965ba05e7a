"""Answers as OpenAI spells them: chat completions and completions, whole and as chunks."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from qpack_runtime.serve.http.answer import Delta, Part
from qpack_runtime.serve.http.logprobs import Spelling, TextOffsets, chat_logprobs, completion_logprobs
from qpack_runtime.serve.text.tool_calls import ToolCall


class _Shape:
    """`alternatives`: how many likely tokens beside each, None without log-probabilities. `seed`: the one used."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, model: str, fingerprint: str, seed: int, spelling: Spelling, alternatives: int | None,
                 include_usage: bool):  # fmt: skip
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model,
                      "system_fingerprint": fingerprint, "seed": seed}  # fmt: skip
        self._spelling, self._alternatives = spelling, alternatives
        # With usage asked for, OpenAI's chunks before the last say that they have none.
        self._no_usage = {"usage": None} if include_usage else {}

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "object": self.chunk_object, "choices": [], "usage": usage}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "object": self.chunk_object, "choices": [choice], **self._no_usage}

    def _whole(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": usage}


class ChatShape(_Shape):
    prefix = "chatcmpl"
    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def opening(self, part: Part) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return self._chunk({"index": part.index, "delta": delta, "logprobs": None, "finish_reason": None})

    def chunk(self, delta: Delta) -> dict[str, Any]:
        part = delta.part
        said: dict[str, Any] = {"content": delta.text} if delta.text else {}
        if delta.calls:
            first = len(part.calls) - len(delta.calls)
            said["tool_calls"] = [_call(call, first + i) for i, call in enumerate(delta.calls)]
        logprobs = self._logprobs(delta.scored) if delta.scored else None
        choice = {"index": part.index, "delta": said, "logprobs": logprobs, "finish_reason": delta.finish_reason}
        return self._chunk(choice)

    def whole(self, parts: Sequence[Part], usage: dict[str, Any]) -> dict[str, Any]:
        choices = []
        for part in parts:
            message: dict[str, Any] = {"role": "assistant", "content": part.text, "refusal": None}
            if part.calls:
                message["content"] = part.text or None
                message["tool_calls"] = [_call(call) for call in part.calls]
            choices.append({
                "index": part.index, "message": message, "finish_reason": part.finish_reason,
                "logprobs": None if self._alternatives is None else self._logprobs(part.scored),
            })  # fmt: skip
        return self._whole(choices, usage)

    def _logprobs(self, scored: Sequence[Any]) -> dict[str, Any]:
        return chat_logprobs(scored, self._alternatives or 0, self._spelling)


class CompletionShape(_Shape):
    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._offsets: dict[int, TextOffsets] = {}  # of each part by its index, as far as its tokens were told

    def opening(self, part: Part) -> dict[str, Any] | None:
        """The prompt, if it is to be echoed."""
        if not part.prefix:
            return None
        return self._chunk({"index": part.index, "text": part.prefix, "logprobs": None, "finish_reason": None})

    def chunk(self, delta: Delta) -> dict[str, Any]:
        part = delta.part
        logprobs = self._logprobs(part, delta.scored) if delta.scored else None
        choice = {
            "index": part.index, "text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish_reason
        }  # fmt: skip
        return self._chunk(choice)

    def whole(self, parts: Sequence[Part], usage: dict[str, Any]) -> dict[str, Any]:
        choices = [
            {
                "index": part.index, "text": part.prefix + part.text, "finish_reason": part.finish_reason,
                "logprobs": None if self._alternatives is None else self._logprobs(part, part.scored),
            }
            for part in parts
        ]  # fmt: skip
        return self._whole(choices, usage)

    def _logprobs(self, part: Part, scored: Sequence[Any]) -> dict[str, Any]:
        offsets = self._offsets.setdefault(part.index, TextOffsets(self._spelling.token_bytes, len(part.prefix)))
        return completion_logprobs(scored, self._alternatives or 0, self._spelling, offsets)


def _call(call: ToolCall, index: int | None = None) -> dict[str, Any]:
    shape = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function",
             "function": {"name": call.name, "arguments": call.arguments}}  # fmt: skip
    return shape if index is None else {"index": index, **shape}
