"""The CPU executor against the reference, whole programs: logits of every bucket, greedy tokens, and what fast mode costs.

In float32 the two differ by the order of their sums alone. Where activations are rounded to 16 bits, a difference in the
last bit of a sum makes one rounding in many fall the other way, and the cache keeps it: the tolerance is about one step
of the dtype.
"""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bundles import ASSETS, build_bundle
from executors import CPU_KINDS, EXACT, FAST, REFERENCE, HostExecutor, Kind
from models import MODELS, build_model
from qpack_packager.serving import Options
from qpack_runtime.engine import Engine
from qpack_schemas.bundle import Bundle, open_bundle
from teacher_forcing import OPTIONS as WINDOWS
from teacher_forcing import forced_logits, held_out_windows, log_likelihood

OPTIONS = Options(batches=(1, 4), contexts=(64, 256), prefills=(1, 16, 64), slots=4)
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}  # of the largest logit of a row

# Slot, and the lengths of its prompt's chunks.
PROMPTS = {0: (64, 1, 16, 50), 1: (1, 11), 2: (64, 64, 64, 8), 3: (40,)}
STEPS = [(1,), (3, 1), (0,), (2, 0, 3, 1), (3, 0), (2,), (1, 2, 3)]


def text_ids(count: int) -> list[int]:
    return held_out_windows("tiny-qwen3", -(-count // 128)).reshape(-1)[:count].tolist()


def steps_of(executor: HostExecutor, bundle: Bundle) -> list[tuple[str, np.ndarray]]:
    """Bucket and logits of every step of a small service, which runs every bucket; the text tells the tokens."""
    engine, ids, seen = Engine(executor, bundle.manifest), text_ids(300), []

    def step(rows: int, run, *arguments) -> None:
        before = Counter(engine.runs)
        run(*arguments)
        (bucket,) = engine.runs - before
        seen.append((bucket, executor.io(bucket)["logits"][:rows, : engine.vocab].copy()))

    for slot, lengths in PROMPTS.items():
        start = 0
        for length in lengths:
            step(1, engine.prefill_chunk, slot, start, ids[start : start + length])
            start += length
    for slots in STEPS * 3:
        for slot in slots:
            executor.state("slot_token")[slot] = ids[engine.positions[slot]]
        step(len(slots), engine.decode, slots)
    assert {bucket for bucket, _ in seen} == {bucket["name"] for bucket in bundle.manifest["buckets"]}
    return seen
