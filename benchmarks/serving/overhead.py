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


def overhead(
    bundle: Path, server: Server, shape: Shape, tokens: tuple[int, int], waves: int, wave: Callable[[int], Sent]
) -> dict[str, Any]:
    """Executor and server in turn, `waves` times each, with one sequence in each slot.

    `wave(number)` sends a request for each slot at once, with prompts and answers of `tokens` each. Tokens per second
    of the server are those between the last first token and the first last one, when all slots decode; the executor's
    are those of `qpack-runtime bench` around the middle of the same contexts. `host_ms`: the engine thread's work
    before each step of the waves, prompts included."""
    prompt, answer = tokens
    context = max(1, prompt + answer // 2 - WINDOW // 2)  # bench goes on from there by WINDOW positions
    executor, served = list[float](), list[float]()
    with server.awake():
        before = read_histogram(server.get("/metrics")[1], HOST_SECONDS)
    for number in range(waves):
        executor.append(_executor_rate(bundle, shape, context))
        with server.awake():
            served.append(decode_rate(wave(number).answers))
    with server.awake():
        host = read_histogram(server.get("/metrics")[1], HOST_SECONDS) - before
    return {
        "batch": shape.slots, "context": context,
        "executor_tokens_per_s": float(np.median(executor)), "round_executor_tokens_per_s": executor,
        "server_tokens_per_s": float(np.median(served)), "round_server_tokens_per_s": served,
        "share": float(np.median(served) / np.median(executor)),
        "steps": host.count, "host_ms": {"mean": 1000 * host.mean, "p99": 1000 * host.quantile(0.99)},
    }  # fmt: skip


def decode_rate(answers: Sequence[Answer]) -> float:
    """Tokens per second while all answers were under way. Raises QpackError if one has failed, or there is no such
    time."""
    if failed := [answer for answer in answers if answer.failure]:
        raise QpackError(f"{len(failed)} of {len(answers)} requests failed: {failed[0].failure} {failed[0].message}")
    begin, end = max(answer.times[0] for answer in answers), min(answer.times[-1] for answer in answers)
    if begin >= end:
        raise QpackError(
            "the first answer ended before the last one began: at no time did all slots decode",
            remedy="ask for longer answers with --answer-tokens",
        )
    return sum(begin < time <= end for answer in answers for time in answer.times) / (end - begin)


def _executor_rate(bundle: Path, shape: Shape, context: int) -> float:
    command = [
        *OURS, "bench", str(bundle), "--batch", str(shape.slots), "--context", str(context), "--prefill", "1",
        "--steps", str(STEPS), "--threads", str(shape.threads), "--verify", "quick", "--format", "json",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if ran.returncode:
        raise QpackError(f"qpack-runtime bench ended with exit code {ran.returncode}: {ran.stderr}")
    return next(row["tokens_per_s"] for row in json.loads(ran.stdout)["rows"] if row["phase"] == "decode")
