"""The launches of `sample`: one pass over the logits in chunks, then what is left of them becomes a token."""

from qpack_packager.cuda.launches import Launches, block, operands
from qpack_schemas.sampling import BIAS_LIMIT, CHUNK_IDS, TOP_LOGPROBS_LIMIT

KEPT = 128  # candidates of a chunk
KEPT_RAW = 32  # candidates of a chunk for log-probabilities
FIRST = 512  # candidates that are ranked


def sample(to: Launches, index: int) -> int:
    instruction = to.program.code[index]
    o = operands(instruction)
    rows, width = to.rows(o["logits"]), to.shape(o["logits"])[1]
    chunks = -(-width // CHUNK_IDS)
    buffers = {
        "best": ("int64", chunks, 2), "masses": ("int64", chunks), "tops": ("int32", chunks, 4),
        "raw": ("float32", chunks, 2), "floors": ("int64", chunks), "candidates": ("int64", chunks, KEPT),
        "raw_candidates": ("int64", chunks, KEPT_RAW),
    }  # fmt: skip
    scratch = {name: to.scratch(o["ids"], name, dtype, rows, *shape) for name, (dtype, *shape) in buffers.items()}
    names = ("logits", "slots", "positions", "ints", "floats", "bias_ids", "bias_values", "grammar", "counts")
    tables = {
        **{name: o[name] for name in names}, "last": o.get("last"), **scratch, "VOCAB": instruction.attrs["vocab"],
        "WIDTH": width, "SCRATCH": to.shape(o["ints"])[0] - 1, "NC": chunks, "C": KEPT,
        "RC": KEPT_RAW, "LIST": BIAS_LIMIT, "TOP": TOP_LOGPROBS_LIMIT,
    }  # fmt: skip
    to.launch(
        "sample.sample_chunks",
        (index, index),
        (rows, chunks, 1),
        {**tables, "CHUNK": CHUNK_IDS},
        warps=8,
        fp_fusion=False,
    )
    outputs = ("slot_token", "slot_position", "ids", "status", "logprobs", "top_ids", "top_logprobs")
    first = to.scratch(o["ids"], "first", "int64", rows, FIRST)
    given = {
        **tables, **{name: o[name] for name in outputs}, "first": first, "NCP": block(chunks), "K": FIRST,
    }  # fmt: skip
    to.launch("sample_merge.sample_merge", (index, index), (rows, 1, 1), given, warps=8, fp_fusion=False)
    return 1
