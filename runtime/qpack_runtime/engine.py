"""Feeds sequences through buckets: which bucket runs, what the host writes before a step and reads after it.

The engine keeps what a program may rely on: slots are distinct, positions lie below the bucket's context, sampling
tables are written before a slot's first row.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from qpack_runtime.sampling_options import SamplingOptions, write_options
from qpack_schemas.errors import FitError, UsageError
from qpack_schemas.manifest import Bucket, Manifest
from qpack_schemas.sampling import GRAMMAR, INTS


class Executor(Protocol):
    """What runs programs; the reference executor defines what each one computes.

    Inputs are written into `io` and belong to the next launch: they may be written again as soon as it returns. A
    launch may return before the step has run; `read` waits for it and returns the outputs of `sample` by name."""

    lookahead: bool  # whether it pays to launch a step before the one before is read
    same_bits: bool  # whether a token leaves the same bits through a prefill program as through a decode program

    @property
    def fallbacks(self) -> int: ...  # launches so far that went without what was bound or captured at boot
    @property
    def notes(self) -> list[str]: ...  # lines for whoever watches
    @property
    def facts(self) -> dict[str, Any]: ...  # what was decided and measured, for machines

    def io(self, bucket: str) -> Mapping[str, np.ndarray]: ...
    def seat_written(self, slot: int) -> None: ...
    def launch(self, bucket: str) -> Any: ...
    def read(self, ticket: Any) -> Mapping[str, np.ndarray]: ...
    def logits(self, bucket: str) -> np.ndarray: ...  # float32 [T, V] of the last launch, once that has been read


@dataclass(frozen=True)
class Choice:
    """What `sample` said about one row. `status` 0 means that `token` is a token and the slot has advanced."""

    token: int
    status: int
    logprob: float  # 0 unless the slot asked for log-probabilities
    top: tuple[tuple[int, float], ...] = ()  # likewise: the likeliest ids and their log-probabilities, best first


@dataclass(frozen=True)
class Pending:
    """A launched step. Must be read, in the order of the launches, before one of its slots is prefilled again."""

    ticket: Any
    bucket: str
    slots: tuple[int, ...]  # whose choices are wanted
    advances: bool  # a decode step, which moves each of its slots that gets a token


class Engine:
    """One executor, its slots, and the position each slot reaches when all that was launched has run."""

    def __init__(self, executor: Executor, manifest: Manifest):
        self.executor = executor
        self.slots, self.context = manifest["slots"], manifest["context"]
        self.vocab = manifest["model"]["real_vocab_size"]
        self.positions = [0] * self.slots  # of the next row, per slot
        self.runs: Counter[str] = Counter()  # bucket -> steps
        self.last_bucket = ""  # of the last launch, also of one that failed
        self._asked_logprobs = [False] * self.slots
        self._buckets = {
            kind: sorted(
                (bucket for bucket in manifest["buckets"] if bucket["program"] == kind),
                key=lambda bucket: (bucket["rows"], bucket["context"]),
            )
            for kind in ("decode", "prefill")
        }

    def prefill(self, slot: int, tokens: Sequence[int], options: SamplingOptions | None = None) -> Choice:
        """Starts the sequence `tokens` in a slot and chooses the token behind it. Raises what `launch_prefill` does."""
        return self.read(self.launch_prefill(slot, tokens, options))[0]

    def launch_prefill(self, slot: int, tokens: Sequence[int], options: SamplingOptions | None = None) -> Pending:
        """Launches all chunks of a prompt; the one pending is the last, whose choice is the first token.

        Raises FitError if the prompt leaves no room in the context, UsageError for an id the tokenizer doesn't have."""
        if not tokens:
            raise UsageError("the prompt has no tokens", remedy="give at least one character")
        if len(tokens) >= self.context:
            raise FitError(
                f"the prompt has {len(tokens)} tokens, the bundle's context is {self.context}; the answer needs room",
                remedy="shorten the prompt or build with a larger --context",
            )
        if wrong := [token for token in tokens if not 0 <= token < self.vocab]:
            raise UsageError(f"token id {wrong[0]} is not in the vocabulary of {self.vocab} ids")
        self.admit(slot, options or SamplingOptions())
        start, pending = 0, None
        for length in self.chunks(len(tokens)):
            pending = self.launch_chunk(slot, start, tokens[start : start + length])
            start += length
        assert pending is not None
        return pending

    def chunks(self, length: int) -> Iterator[int]:
        """How a prompt is cut: the largest bucket while it is filled, then the rest. The cuts change no result."""
        largest = self.prefill_rows[-1]
        yield from [largest] * (length // largest)
        if length % largest:
            yield length % largest

    def prefill_chunk(self, slot: int, start: int, tokens: Sequence[int]) -> Choice:
        """Rows of one slot at the positions from `start` on; the choice behind the last one."""
        return self.read(self.launch_chunk(slot, start, tokens))[0]

    def launch_chunk(self, slot: int, start: int, tokens: Sequence[int]) -> Pending:
        """Launches rows of one slot at the positions from `start` on; the choice is the one behind the last."""
        bucket = self._fit("prefill", len(tokens), start + len(tokens))
        io = self.executor.io(bucket)
        io["prompt"][: len(tokens)] = tokens
        io["prompt"][len(tokens) :] = 0
        io["slot"][0], io["start"][0], io["length"][0] = slot, start, len(tokens)
        ticket = self._launch(bucket)
        self.positions[slot] = start + len(tokens)
        return Pending(ticket, bucket, (slot,), advances=False)

    def decode(self, slots: Sequence[int]) -> list[Choice]:
        """One step of each of the given slots; each consumes the token it chose last."""
        return self.read(self.launch_decode(slots))

    def launch_decode(self, slots: Sequence[int]) -> Pending:
        """Launches that step. The tokens it consumes need not have been read: the device has them."""
        if len(set(slots)) < len(slots):
            raise UsageError(f"slots {list(slots)} are not distinct")
        needed = max(self.positions[slot] for slot in slots) + 1
        bucket = self._fit("decode", len(slots), needed)
        io = self.executor.io(bucket)
        io["slots"][: len(slots)] = slots
        io["slots"][len(slots) :] = self.slots  # padding sits on the scratch slot
        ticket = self._launch(bucket)
        for slot in slots:
            self.positions[slot] += 1
        return Pending(ticket, bucket, tuple(slots), advances=True)

    def read(self, pending: Pending) -> list[Choice]:
        """What a launched step chose, row by row. A slot that got no token is where it was before the step."""
        outputs = self.executor.read(pending.ticket)
        columns = (outputs[name][: len(pending.slots)].tolist() for name in ("ids", "status", "logprobs"))
        choices = [Choice(*row) for row in zip(*columns, strict=True)]
        for row, (slot, choice) in enumerate(zip(pending.slots, choices, strict=True)):
            if pending.advances and choice.status:
                self.positions[slot] -= 1
            if self._asked_logprobs[slot]:
                ids, logprobs = outputs["top_ids"][row].tolist(), outputs["top_logprobs"][row].tolist()
                choices[row] = replace(choice, top=tuple(zip(ids, logprobs, strict=True)))
        return choices

    def logits(self, pending: Pending) -> np.ndarray:
        """float32 [slots, vocab]: what `sample` got for each slot of the last launch, which must be read by then.
        The array belongs to the executor, until the next launch."""
        return self.executor.logits(pending.bucket)[: len(pending.slots), : self.vocab]

    def admit(self, slot: int, options: SamplingOptions, *, grammar: bool = False) -> None:
        """Writes how the tokens of a slot are chosen; must come before its first row. With `grammar`, `restrict` must
        follow before each row whose choice is wanted."""
        tables = {name: self._tables[f"sampling.{name}"] for name in ("ints", "floats", "bias_ids", "bias_values")}
        write_options(options, slot, **tables, vocab=self.vocab)
        if grammar:
            tables["ints"][slot, INTS.index("flags")] |= GRAMMAR
        self._asked_logprobs[slot] = options.logprobs
        self.executor.seat_written(slot)

    def restrict(self, slot: int, write: Callable[[np.ndarray], None]) -> None:
        """Calls `write` with the slot's grammar mask, int32 [V / 32], bit set: the id may be chosen next."""
        write(self._tables["sampling.grammar"][slot])
        self.executor.seat_written(slot)

    @property
    def _tables(self) -> Mapping[str, np.ndarray]:
        """The sampling tables, which all buckets share."""
        return self.executor.io(self._buckets["prefill"][0]["name"])

    @property
    def prefill_rows(self) -> list[int]:
        """How many tokens a chunk may have, one number for each size of bucket, ascending."""
        return sorted({bucket["rows"] for bucket in self._buckets["prefill"]})

    @property
    def decode_rows(self) -> int:
        """Sequences that fit into one decode step."""
        return self._buckets["decode"][-1]["rows"]

    def _fit(self, kind: str, rows: int, context: int) -> str:
        """The smallest bucket with enough rows, and among those with enough positions."""
        for bucket in self._buckets[kind]:
            if bucket["rows"] >= rows and bucket["context"] >= context:
                return bucket["name"]
        largest: Bucket = self._buckets[kind][-1]
        raise FitError(
            f"no {kind} bucket holds {rows} rows at {context} positions; the largest is {largest['name']}",
            remedy="build with a larger --batch or --context",
        )

    def _launch(self, bucket: str) -> Any:
        self.last_bucket = bucket
        ticket = self.executor.launch(bucket)
        self.runs[bucket] += 1
        return ticket
