"""Requests for answers that their seed decides, and what an answer says, however it was sent."""

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.serve.process.wire import Response, request

OPENINGS = (
    "And the LORD said unto", "In the beginning", "Now these are the", "The king", "Blessed is he", "Thus saith",
    "And it came to pass in those days that", "Woe", "Hear, O", "Their fathers",
)  # fmt: skip

# Per sequence: text, why it ended, and the tokens with their log-probabilities.
Said = list[tuple[str, str | None, list[Any]]]


@dataclass(frozen=True)
class Question:
    """A request; the same bytes of `fields` ask for the same answer, streamed or not."""

    path: str
    fields: dict[str, Any]

    def sent(self, *, stream: bool, headers: str = "") -> bytes:
        return request(self.path, json.dumps(self.fields | {"stream": stream}).encode("utf-8"), headers=headers)

    @property
    def sequences(self) -> int:
        prompt = self.fields.get("prompt")
        return self.fields.get("n", 1) * (len(prompt) if isinstance(prompt, list) else 1)


def questions(rng: random.Random, count: int) -> list[Question]:
    """Chats and completions with everything that an answer can depend on, `count` of them."""
    return [_question(rng, number) for number in range(count)]


def _question(rng: random.Random, number: int) -> Question:
    fields: dict[str, Any] = {"seed": rng.randrange(2**53), "max_tokens": rng.choice((1, 2, 5, 10, 20, 40))}
    fields |= rng.choice(({}, {"temperature": 0}, {"temperature": 1.3, "top_p": 0.9}, {"top_k": 20}))
    fields |= rng.choice(({}, {}, {"n": 2}, {"n": 3}))
    fields |= rng.choice(({}, {}, {"stop": ["and", " of"]}, {"stop": "\n"}))
    fields |= rng.choice(({}, {}, {}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.2}))
    fields |= rng.choice(({}, {"session": f"session-{rng.randrange(4)}"}))
    if number % 5 == 4:
        fields["response_format"] = {"type": "json_object"}
    text = rng.choice(OPENINGS)
    if number % 2:
        alternatives = rng.choice(({}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3}))
        return Question("/v1/chat/completions", fields | alternatives | {"messages": _chat(rng, text)})
    prompt = rng.choice((text, [text, rng.choice(OPENINGS)], [rng.randrange(500) for _ in range(rng.randrange(1, 60))]))
    return Question("/v1/completions", fields | rng.choice(({}, {"logprobs": 2})) | {"prompt": prompt})


def _chat(rng: random.Random, text: str) -> list[dict[str, str]]:
    first = [{"role": "user", "content": text}]
    return rng.choice((first, [{"role": "system", "content": "Speak."}, *first]))


def said(response: Response) -> Said:
    """What an answer says. Raises AssertionError for a stream that did not end as a whole one does."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return [_choice([choice]) for choice in response.json()["choices"]]
    *events, done, end = response.body.decode("utf-8").split("\n\n")
    assert (done, end) == ("data: [DONE]", ""), response.body[-300:]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all("error" not in chunk for chunk in chunks), chunks[-1]
    choices = sorted((choice for chunk in chunks for choice in chunk["choices"]), key=lambda choice: choice["index"])
    return [_choice(list(parts)) for _, parts in itertools.groupby(choices, lambda choice: choice["index"])]


def _choice(parts: Sequence[dict[str, Any]]) -> tuple[str, str | None, list[Any]]:
    """One sequence, of its chunks or of the one whole."""
    text, tokens = "", []
    for part in parts:
        message = part.get("message") or part.get("delta") or {}
        text += part.get("text") or message.get("content") or ""
        scored = part.get("logprobs") or {}
        tokens += scored.get("content") or zip(scored.get("tokens", ()), scored.get("token_logprobs", ()), strict=True)
    return text, parts[-1]["finish_reason"], tokens
