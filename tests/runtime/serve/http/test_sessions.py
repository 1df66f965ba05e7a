"""Going on from a slot: how many tokens an answer says were cached, and that its text is what the prompt sent
anew gets."""

from itertools import pairwise
from typing import Any

import pytest
from openai import OpenAI
from openai.types import Completion

from qpack_runtime.boot import Booted
from runtime.serve.http.conftest import Alone

MODEL = "tiny-qwen3_5"
FIRST, SECOND = "And the LORD said unto", " Moses, Go"
TOKENS = 10


def ask(client: OpenAI, prompt: list[int], session: str | None, **fields: Any) -> Completion:
    ours = {"session": session} if session else {}
    return client.completions.create(model=MODEL, prompt=prompt, max_tokens=TOKENS, extra_body=ours, **fields)


def cached(answer: Any) -> int:
    return answer.usage.prompt_tokens_details.cached_tokens


@pytest.mark.parametrize("session", ["a-1", None])
def test_a_second_turn_is_cached_and_says_what_it_would_say_anew(
    client: OpenAI, alone: Alone, booted: Booted, session: str | None
):
    first = booted.tokenizer.encode(FIRST).ids
    spoken = alone(first, TOKENS, seed=1)
    turns = [first, [*first, *spoken.output_ids, *booted.tokenizer.encode(SECOND).ids]]
    spoken = alone(turns[1], TOKENS, seed=2)
    turns.append([*turns[1], *spoken.output_ids, *booted.tokenizer.encode(SECOND).ids])
    assert cached(ask(client, turns[0], session, seed=1)) == 0
    # The last token of an answer was told but not consumed.
    for seed, (before, prompt) in enumerate(pairwise(turns), 2):
        answer = ask(client, prompt, session, seed=seed)
        assert cached(answer) == len(before) + TOKENS - 1
        assert answer.choices[0].text == alone(prompt, TOKENS, seed=seed).text
    for seed, prompt in enumerate(turns[1:], 2):
        anew = ask(client, prompt, f"anew-{seed}", seed=seed)
        assert (cached(anew), anew.choices[0].text) == (0, alone(prompt, TOKENS, seed=seed).text)


def test_a_conversation_goes_on_in_its_session(client: OpenAI):
    messages: list[Any] = [{"role": "user", "content": "Who art thou?"}]
    asked: dict[str, Any] = {"model": MODEL, "seed": 3, "max_tokens": 1, "extra_body": {"session": "chat"}}
    first = client.chat.completions.create(messages=messages, **asked)
    messages += [first.choices[0].message, {"role": "user", "content": "And I?"}]
    second = client.chat.completions.create(messages=messages, **asked)
    assert first.usage is not None
    assert cached(second) == first.usage.prompt_tokens
    asked["extra_body"] = {"session": "another"}
    anew = client.chat.completions.create(messages=messages, **asked)
    assert (cached(anew), anew.choices[0].message.content) == (0, second.choices[0].message.content)


@pytest.mark.parametrize(
    ("session", "fields"),
    [
        ("b-2", {}),  # another session
        (None, {}),
        ("b-1", {"presence_penalty": 0.5}),  # which asks for a fresh start
        ("b-1", {"extra": -1}),  # a prompt that is shorter than what was consumed
    ],
)
def test_nothing_is_cached_for_whom_it_is_not(
    client: OpenAI, alone: Alone, booted: Booted, session: str | None, fields: dict[str, Any]
):
    prompt = booted.tokenizer.encode(FIRST + " the children of Israel").ids
    fields = dict(fields)
    ask(client, prompt, "b-1", seed=1)
    longer = [*prompt, *alone(prompt, TOKENS, seed=1).output_ids, 40]
    if extra := fields.pop("extra", None):
        longer = prompt[:extra]
    answer = ask(client, longer, session, seed=1, **fields)
    assert cached(answer) == 0
    assert answer.choices[0].text == alone(longer, TOKENS, seed=1, **fields).text
