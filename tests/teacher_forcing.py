"""Perplexity of held-out text: windows of it go through the decode program, each row fed the text's own tokens."""

import math
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer

from bundles import ASSETS
from executors import HostExecutor
from qpack_packager.serving import Options
from qpack_runtime.engine import Engine
from qpack_schemas.bundle import Bundle

WINDOW, BATCH = 128, 8
OPTIONS = Options(batches=(BATCH,), contexts=(WINDOW,), prefills=(1,))


def held_out_windows(name: str, count: int) -> np.ndarray:
    """int64 [count, WINDOW]: ids of the text that the trained model `name` has not seen."""
    text = (ASSETS / name / "eval.txt").read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(ASSETS / name / "tokenizer.json")).encode(text).ids
    return np.array(ids[: len(ids) // WINDOW * WINDOW], np.int64).reshape(-1, WINDOW)[:count]


def forced_logits(
    executor: HostExecutor, bundle: Bundle, windows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Position by position of as many windows, logits [BATCH, vocab] and the tokens [BATCH] that follow. The logits are
    the executor's own, until the next step."""
    engine, bucket = Engine(executor, bundle.manifest), f"decode-b{BATCH}-c{WINDOW}"
    for batch in windows.reshape(-1, BATCH, WINDOW):
        engine.positions[:] = [0] * BATCH
        executor.state("slot_position")[:] = 0
        for position in range(WINDOW - 1):
            executor.state("slot_token")[:BATCH] = batch[:, position]
            engine.decode(range(BATCH))
            yield executor.io(bucket)["logits"][:, : engine.vocab], batch[:, position + 1]


def log_likelihood(logits: np.ndarray, wanted: np.ndarray) -> float:
    """Sum over rows of log softmax(logits)[wanted], in float64."""
    logits = logits.astype(np.float64)
    peak = logits.max(-1, keepdims=True)
    log_sum = peak[:, 0] + np.log(np.exp(logits - peak).sum(-1))
    return float((logits[np.arange(len(wanted)), wanted] - log_sum).sum())


def perplexity(executor: HostExecutor, bundle: Bundle, windows: np.ndarray) -> float:
    total = sum(log_likelihood(logits, wanted) for logits, wanted in forced_logits(executor, bundle, windows))
    return math.exp(-total / (windows.size - len(windows)))
