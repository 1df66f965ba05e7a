"""What a bundle will be able to serve, from the flags of `qpack build`: slots, contexts, buckets, forms of weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qpack_schemas.bundle_rules import bucket_name
from qpack_schemas.errors import UsageError
from qpack_schemas.manifest import Bucket
from qpack_schemas.program import Kind

HeadForm = Literal["dense", "int8", "int4"]
EmbeddingForm = Literal["dense", "int8"]

BATCHES = (1, 2, 4, 8)
CONTEXTS = (512, 2048)
PREFILLS = (16, 64, 256)
LARGEST = 1 << 20  # of any number of rows, slots or positions: lines of a buffer stay within int32
DTYPES = ("bfloat16", "float16", "float32")
METHODS = ("rtn", "gptq")
# --lm-head and --embedding -> how it is stored, as in the manifest. The defaults were measured: docs/decisions/0010.
HEADS: Mapping[str, HeadForm] = {"bf16": "dense", "int8": "int8", "int4": "int4"}
EMBEDDINGS: Mapping[str, EmbeddingForm] = {"bf16": "dense", "int8": "int8"}


@dataclass(frozen=True)
class Options:
    """The flags of `qpack build` that shape the bundle; empty means the default."""

    batches: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    prefills: tuple[int, ...] = ()
    slots: int | None = None  # the largest batch
    dtype: str = DTYPES[0]
    targets: tuple[str, ...] = ()  # "cuda", "cuda:sm_89"; every bundle runs on CPUs
    tuning: Path | None = None  # a file of `qpack-runtime tune`
    lm_head: str = "int8"
    embedding: str = "int8"
    rules: tuple[tuple[str, str], ...] = ()  # glob of weights of layers -> bf16, int8 or int4; the first that fits
    method: str = METHODS[0]  # how int4 is made
    calibration: Path | None = None  # the text that gptq rounds by
    max_fallbacks: int = 0  # modules that gptq may leave to rtn


@dataclass(frozen=True)
class Serving:
    slots: int  # sequences at once, the scratch slot not counted
    context: int  # positions per slot: the largest context of the buckets
    buckets: tuple[Bucket, ...]
    dtype: str  # of activations, KV cache and convolution state
    lm_head: HeadForm  # the layers are int4 whatever this is
    embedding: EmbeddingForm
    rules: tuple[tuple[str, str], ...]
    method: str

    def most_rows(self, kind: Kind) -> int:
        return max(bucket["rows"] for bucket in self.buckets if bucket["program"] == kind)


def plan_serving(max_context: int, options: Options) -> Serving:
    """Every batch and every prefill length with every context, the largest first.

    Contexts that are asked for must fit the model's `max_context`; the default ones are cut to it. Raises UsageError.
    """
    if (options.method == "gptq") != (options.calibration is not None):
        raise UsageError(
            "--method gptq and --calibration FILE go together",
            remedy="give a text file like the texts that will be served, or round to nearest without it",
        )
    batches, contexts = options.batches or BATCHES, options.contexts or CONTEXTS
    prefills = options.prefills or PREFILLS
    slots = max(batches) if options.slots is None else options.slots
    for flag, values in (("--batch", batches), ("--context", contexts), ("--prefill", prefills), ("--slots", [slots])):
        if min(values) < 1 or max(values) > LARGEST:
            raise UsageError(f"{flag} {','.join(map(str, values))}: every number must be from 1 to {LARGEST:,}")
    if options.contexts and max(contexts) > max_context:
        raise UsageError(
            f"--context {max(contexts)} is longer than the model's max_position_embeddings {max_context}",
            remedy=f"ask for at most {max_context}",
        )
    if slots < max(batches):
        raise UsageError(f"--slots {slots} is less than the largest batch {max(batches)}", remedy="raise --slots")
    lengths = sorted({min(context, max_context) for context in contexts})
    kinds: tuple[tuple[Kind, tuple[int, ...]], ...] = (("prefill", prefills), ("decode", batches))
    buckets: list[Bucket] = [
        {"name": bucket_name(kind, rows, context), "program": kind, "rows": rows, "context": context}
        for kind, sizes in kinds
        for rows in sorted(set(sizes), reverse=True)
        for context in reversed(lengths)
    ]
    head, embedding = HEADS[options.lm_head], EMBEDDINGS[options.embedding]
    return Serving(slots, lengths[-1], tuple(buckets), options.dtype, head, embedding, options.rules, options.method)
