"""The measurement: every contender once a round, case by case, so that a busy minute of the host is everybody's."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qpack_runtime.bench.bandwidth import read_bandwidth
from qpack_schemas.errors import QpackError

from .process import PeerError, Worker
from .worker import UNQUANTIZED

REFERENCE = "transformers-bf16"  # whose logits those of the others are compared with
SAME_MODEL = 0.99  # cosine of the logits of two bfloat16 forms of one model; strangers have 0
STEPS, PROMPTS = 32, 3  # per measurement


@dataclass(frozen=True)
class Case:
    """`context` tokens are in the cache of each of `batch` sequences when a decode step runs; a prefill's are its
    prompt's."""

    phase: str
    batch: int
    context: int

    def __str__(self) -> str:
        return (
            f"decode, batch {self.batch}, {self.context} tokens" if self.decodes else f"prefill, {self.context} tokens"
        )

    @property
    def decodes(self) -> bool:
        return self.phase == "decode"

    @property
    def tokens(self) -> int:
        """Of one time."""
        return self.batch if self.decodes else self.context


CASES = [*(Case("decode", batch, context) for batch in (1, 4, 8) for context in (128, 512)), Case("prefill", 1, 256)]


@dataclass
class Measured:
    """`times[case][contender]` holds a list of milliseconds per round."""

    times: dict[Case, dict[str, list[list[float]]]]
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    agreement: dict[str, float] = field(default_factory=dict)  # cosine of the logits with REFERENCE's
    left_out: dict[str, str] = field(default_factory=dict)  # contender -> why, whatever was measured before
    bandwidths: list[float] = field(default_factory=list)  # GB/s, one a round


def measure(
    checkpoint: Path,
    work: Path,
    names: Sequence[str],
    *,
    vocab: int,
    threads: int,
    rounds: int,
    cases: Sequence[Case] = CASES,
    say: Callable[[str], None],
) -> Measured:
    """Makes in `work` what the contenders need and isn't there. Raises QpackError if the logits of bfloat16 weights
    differ, so that the contenders don't run the same model."""
    measured = Measured({case: {name: [] for name in names} for case in cases})
    with ExitStack() as stack:
        workers = list[Worker]()
        for name in names:
            say(f"{name}: loading")
            try:
                workers.append(stack.enter_context(closing(Worker(name, checkpoint, work, threads))))
            except PeerError as error:
                measured.left_out[name] = str(error)
        measured.facts = {worker.name: worker.facts for worker in workers}
        if REFERENCE in measured.facts:
            say("comparing logits")
            _compare_logits(measured, workers, checkpoint, work, vocab, threads)
        for number in range(rounds):
            measured.bandwidths.append(read_bandwidth(threads))
            for case in cases:
                say(f"round {number + 1} of {rounds}: {case}")
                first = number % max(1, len(workers))  # nobody always comes first
                for worker in workers[first:] + workers[:first]:
                    times = STEPS if case.decodes else PROMPTS
                    taken = _ask(measured, worker, case.phase, batch=case.batch, context=case.context, times=times)
                    if taken is not None:
                        measured.times[case][worker.name].append(taken)
    return measured


def _ask(measured: Measured, worker: Worker, call: str, **arguments: int) -> Any:
    """The answer, or None from a contender that has failed, now or before."""
    if worker.name in measured.left_out:
        return None
    try:
        return worker.ask(call, **arguments)
    except PeerError as error:
        doing = ", ".join([call, *(f"{name} {value}" for name, value in arguments.items())])
        measured.left_out[worker.name] = f"in {doing}: {error}"


def _compare_logits(
    measured: Measured, workers: Sequence[Worker], checkpoint: Path, work: Path, vocab: int, threads: int
) -> None:
    logits = {worker.name: _ask(measured, worker, "logits", vocab=vocab) for worker in workers}
    if any(name.startswith("llama-") for name in measured.facts):
        with closing(Worker(UNQUANTIZED, checkpoint, work, threads)) as worker:
            logits[UNQUANTIZED] = worker.ask("logits", vocab=vocab)
    reference = logits.pop(REFERENCE)
    for name, values in logits.items():
        if values is not None and reference is not None:
            cosine = np.dot(values, reference) / np.linalg.norm(values) / np.linalg.norm(reference)
            measured.agreement[name] = float(cosine)
    if measured.agreement.get(UNQUANTIZED, 1) < SAME_MODEL:
        raise QpackError(
            f"the logits of {UNQUANTIZED} and {REFERENCE} have a cosine of {measured.agreement[UNQUANTIZED]:.3f}, "
            f"bfloat16 weights must give at least {SAME_MODEL}: they don't run the same model"
        )
