"""What is measured: steps of which shape, and the bytes that one of them must move."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qpack_runtime.engine import Engine
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.errors import FitError, UsageError
from qpack_schemas.manifest import Manifest
from qpack_schemas.traffic import decode_traffic, prefill_traffic

Phase = Literal["decode", "prefill"]


@dataclass(frozen=True)
class Case:
    phase: Phase
    batch: int  # sequences
    context: int  # decode: tokens in the cache of each when a step begins; prefill: tokens of the prompt

    @property
    def tokens(self) -> int:
        """Taken in by one step; the whole prompt is one step of a prefill."""
        return self.batch if self.phase == "decode" else self.context

    def __str__(self) -> str:
        if self.phase == "decode":
            return f"decode, batch {self.batch}, {self.context} tokens in the cache"
        return f"prefill of {self.context} tokens"


def cases_of(
    manifest: Manifest, batches: Sequence[int], contexts: Sequence[int], prefills: Sequence[int]
) -> list[Case]:
    """Decode by context and batch, then prefill. Where nothing is asked for, what the buckets are for: their rows as
    batches and prompts, and sequences that are halfway through each context.

    Raises FitError for a case that no bucket holds, UsageError for a number below 1."""
    if any(number < 1 for number in (*batches, *contexts, *prefills)):
        raise UsageError("--batch, --context and --prefill take whole numbers from 1 on")
    decode, prefill = ([b for b in manifest["buckets"] if b["program"] == kind] for kind in ("decode", "prefill"))
    most = max(bucket["rows"] for bucket in decode)
    batches = batches or [bucket["rows"] for bucket in decode]
    contexts = contexts or [max(1, bucket["context"] // 2) for bucket in decode]
    prefills = prefills or [min(bucket["rows"], manifest["context"] - 1) for bucket in prefill]
    if max(batches) > most:
        raise FitError(
            f"a batch of {max(batches)} is asked for, the bundle decodes {most} sequences at once",
            remedy="measure a smaller --batch, or build with a larger --batch",
        )
    if (longest := max(*contexts, *prefills)) >= manifest["context"]:
        raise FitError(
            f"{longest} tokens are asked for, the bundle's context is {manifest['context']}; the next one needs room",
            remedy="measure a smaller --context or --prefill, or build with a larger --context",
        )
    return [
        *(Case("decode", batch, context) for context in sorted(set(contexts)) for batch in sorted(set(batches))),
        *(Case("prefill", 1, length) for length in sorted(set(prefills))),
    ]


def bytes_of(case: Case, bundle: Bundle, engine: Engine) -> int:
    """What a step must move, as the contract counts it: of decode the first step at that context, of prefill all chunks
    that the engine cuts the prompt into, each of which reads the weights."""
    shared = shared_buffers(bundle.manifest)
    if case.phase == "decode":
        return decode_traffic(bundle.programs["decode"], shared, case.batch, case.context + 1).total
    total = end = 0
    for rows in engine.chunks(case.context):
        end += rows
        total += prefill_traffic(bundle.programs["prefill"], shared, rows, end).total
    return total
