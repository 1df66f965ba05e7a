"""Steps in a bucket of the caller's choice, where the engine would take the smallest that fits."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qpack_runtime.cuda.executor import CudaExecutor, Ticket
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.bundle import Bundle
from qpack_schemas.manifest import Bucket
from qpack_schemas.program import Arena, Kind

Launch = Callable[[str], Ticket]
GREEDY = SamplingOptions(logprobs=True)
DRAWN = SamplingOptions(
    temperature=0.9, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.2, presence_penalty=0.1, seed=7,
    logit_bias={5: 2.0}, logprobs=True,
)  # fmt: skip


def buckets_of(bundle: Bundle, kind: Kind) -> list[Bucket]:
    """Those of one program, the smallest first."""
    chosen = [bucket for bucket in bundle.manifest["buckets"] if bucket["program"] == kind]
    return sorted(chosen, key=lambda bucket: (bucket["rows"], bucket["context"]))


def prefill(
    executor: CudaExecutor, bucket: Bucket, slot: int, start: int, tokens: Sequence[int], launch: Launch
) -> Mapping[str, np.ndarray]:
    """The outputs of `sample` behind a chunk at the positions from `start` on; rows behind the tokens are padding."""
    io = executor.io(bucket["name"])
    io["prompt"][:] = 0
    io["prompt"][: len(tokens)] = tokens
    io["slot"][0], io["start"][0], io["length"][0] = slot, start, len(tokens)
    return executor.read(launch(bucket["name"]))


def decode(
    executor: CudaExecutor, bucket: Bucket, slots: Sequence[int], scratch: int, launch: Launch
) -> Mapping[str, np.ndarray]:
    """The outputs of `sample` of a step of `slots`; rows behind them are padding on the slot `scratch`."""
    io = executor.io(bucket["name"])
    io["slots"][:] = scratch
    io["slots"][: len(slots)] = slots
    return executor.read(launch(bucket["name"]))


def fill(executor: CudaExecutor, arena: Arena, byte: int) -> None:
    """Every byte of an arena on the device."""
    driver, stream = executor.queue
    driver.call("cuMemsetD8Async", executor.memory.base[arena], byte, executor.memory.sizes[arena], stream)


def random_tokens(bundle: Bundle, count: int, seed: int) -> list[int]:
    """Ids that the tokenizer has, the same for the same seed."""
    generator: Any = np.random.default_rng(seed)
    return generator.integers(0, bundle.manifest["model"]["real_vocab_size"], count).tolist()
