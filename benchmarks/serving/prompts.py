"""What is asked: the same prompts for all servers, others in every round, so that no server finds one in its cache."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qpack_schemas.errors import InputError

IDS = 256  # ids below it are in every vocabulary that knows all bytes

Prompt = str | list[int]


def random_prompts(count: int, tokens: int, *, seed: int, turn: int) -> list[list[int]]:
    """`count` prompts of `tokens` ids each, the same for the same seed and turn."""
    return np.random.default_rng([seed, turn]).integers(IDS, size=(count, tokens)).tolist()


def prompts_of(file: Path, count: int, *, turn: int) -> list[str]:
    """`count` lines of a text file, those that follow the lines of the turn before; from the top again behind the last.

    Raises InputError for a file without text."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise InputError("has no line with text", where=str(file), remedy="write one prompt a line")
    return [lines[(turn * count + index) % len(lines)] for index in range(count)]


def body(model: str, prompt: Prompt, answer_tokens: int, end_ids: Sequence[int]) -> dict[str, Any]:
    """The body of POST /v1/completions: greedy, streamed, and as many tokens as asked for, since the ids that would end
    the answer are ruled out."""
    asked: dict[str, Any] = {
        "model": model, "prompt": prompt, "max_tokens": answer_tokens, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    return asked | ({"logit_bias": {str(number): -100 for number in end_ids}} if end_ids else {})
