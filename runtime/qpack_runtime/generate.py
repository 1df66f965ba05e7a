"""One sequence from prompt to end: the life of a token in the smallest form."""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from qpack_runtime.boot import Booted
from qpack_runtime.detokenizer import Detokenizer
from qpack_runtime.engine import Choice
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.errors import QpackError
from qpack_schemas.sampling import NONFINITE

FinishReason = Literal["stop", "length"]


@dataclass
class Generation:
    """What came of a sequence; filled while it runs."""

    prompt_ids: list[int]
    output_ids: list[int] = field(default_factory=list)  # the token that ended it included
    text: str = ""
    finish_reason: FinishReason | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


def generate(
    booted: Booted,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    options: SamplingOptions | None = None,
    slot: int = 0,
) -> Generator[Generation]:
    """Yields the same, growing Generation after every token.

    Ends with "stop" at one of the model's end tokens and with "length" after `max_tokens` tokens or when prompt and
    answer fill the context. A step may be under way beside each token: read to the end, or close the generator, before
    the slot is used again. Raises QpackError if the model computes no finite logits."""
    engine = booted.engine
    generation, detokenizer = Generation(list(prompt)), Detokenizer(booted.token_bytes)
    ends = set(booted.bundle.manifest["model"]["eos_token_ids"])
    limit = min(max_tokens, engine.context - len(generation.prompt_ids))
    begin = time.perf_counter()
    pending, following = engine.launch_prefill(slot, generation.prompt_ids, options), None
    try:
        while True:
            if engine.executor.lookahead and len(generation.output_ids) + 1 < limit:
                following = engine.launch_decode([slot])
            (choice,) = engine.read(pending)
            seconds = time.perf_counter() - begin
            if generation.output_ids:
                generation.decode_seconds += seconds
            else:
                generation.prefill_seconds = seconds
            require_token(choice)
            generation.output_ids.append(choice.token)
            generation.text += detokenizer.push(choice.token)
            if choice.token in ends:
                generation.finish_reason = "stop"
            elif len(generation.output_ids) >= limit:
                generation.finish_reason = "length"
            yield generation
            if generation.finish_reason:
                return
            begin = time.perf_counter()
            pending, following = following or engine.launch_decode([slot]), None
    finally:
        if following is not None:  # a step beyond the end: its token is dropped, its slot has moved
            engine.read(following)


def require_token(choice: Choice) -> None:
    """Raises QpackError if the row got no token."""
    if choice.status:
        cause = "a logit is not finite" if choice.status & NONFINITE else "every token is forbidden"
        raise QpackError(f"no token could be chosen: {cause}", remedy="the weights or the logit bias are to blame")
