"""What serving costs beside the steps themselves: the engine thread's own work, and what is left of the executor's
speed when requests come over HTTP."""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qpack_runtime.bench.measure import WINDOW
from qpack_schemas.errors import QpackError

from .answer import Answer
from .histogram import read_histogram
from .sender import Sent
from .servers import OURS, Server, Shape

HOST_SECONDS = "qpack_step_host_seconds"
STEPS = 2 * WINDOW
LEAST_CHUNK = 16  # tokens of a prompt that a slow host takes in between two decode steps


def overhead(
    bundle: Path, server: Server, shape: Shape, prompt: int, waves: int, wave: Callable[[int, int], Sent]
) -> dict[str, Any]:
    """Server and executor in turn, `waves` times each, with one sequence in each slot.

    `wave(number, tokens)` sends a request for each slot at once, with prompts of `prompt` ids and answers of `tokens`:
    enough for all to decode together when the last prompt has been taken in. The executor's tokens per second are those
    of `qpack-runtime bench` around the same number of tokens in the cache. `host_ms`: the engine thread's work before
    each step of the waves, prompts included."""
    tokens = min(shape.slots * prompt // LEAST_CHUNK + STEPS, shape.context - prompt)
    executor, served, contexts = list[float](), list[float](), list[int]()
    with server.awake():
        before = read_histogram(server.get("/metrics")[1], HOST_SECONDS)
    for number in range(waves):
        with server.awake():
            rate, behind = decode_phase(wave(number, tokens).answers)
        served.append(rate)
        contexts.append(max(1, prompt + round(behind) - WINDOW // 2))  # bench goes on from there by WINDOW positions
        executor.append(_executor_rate(bundle, shape, contexts[-1]))
    with server.awake():
        host = read_histogram(server.get("/metrics")[1], HOST_SECONDS) - before
    return {
        "batch": shape.slots, "contexts": contexts,
        "executor_tokens_per_s": float(np.median(executor)), "round_executor_tokens_per_s": executor,
        "server_tokens_per_s": float(np.median(served)), "round_server_tokens_per_s": served,
        "share": float(np.median(np.divide(served, executor))),
        "steps": host.count, "host_ms": {"mean": 1000 * host.mean, "p99": 1000 * host.quantile(0.99)},
    }  # fmt: skip


def decode_phase(answers: Sequence[Answer]) -> tuple[float, float]:
    """While all answers were under way: tokens per second, and how many of its own an answer had then, on average.

    Raises QpackError if one has failed, or there is no such time."""
    if failed := [answer for answer in answers if answer.failure]:
        raise QpackError(f"{len(failed)} of {len(answers)} requests failed: {failed[0].failure} {failed[0].message}")
    begin, end = max(answer.times[0] for answer in answers), min(answer.times[-1] for answer in answers)
    if begin >= end:
        raise QpackError(
            "the first answer ended before the last one began: at no time did all slots decode",
            remedy="let nothing else run here, or ask with shorter prompts: --prompt-tokens",
        )
    places = [place for answer in answers for place, time in enumerate(answer.times) if begin < time <= end]
    return len(places) / (end - begin), float(np.mean(places))


def _executor_rate(bundle: Path, shape: Shape, context: int) -> float:
    command = [
        *OURS, "bench", str(bundle), "--batch", str(shape.slots), "--context", str(context), "--prefill", "1",
        "--steps", str(STEPS), "--threads", str(shape.threads), "--verify", "quick", "--format", "json",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if ran.returncode:
        raise QpackError(f"qpack-runtime bench ended with exit code {ran.returncode}: {ran.stderr}")
    return next(row["tokens_per_s"] for row in json.loads(ran.stdout)["rows"] if row["phase"] == "decode")
