"""The launches of `sample`: one pass over the logits in chunks, then what is left of them becomes a token."""

from qpack_packager.cuda.lowering.launches import Launches, block, operands
from qpack_schemas.sampling import BIAS_LIMIT, CHUNK_IDS, TOP_LOGPROBS_LIMIT

CANDIDATES = 1024  # of all chunks together, about; and at least FEWEST of each
FEWEST = 64
RAW_CANDIDATES = 32  # of a chunk, for log-probabilities
RANKED = 256  # of the candidates: the largest top_k


def sample(to: Launches, index: int) -> int:
    instruction = to.program.code[index]
    o = operands(instruction)
    rows, width = to.rows(o["logits"]), to.shape(o["logits"])[1]
    chunks = -(-width // CHUNK_IDS)
    kept = max(FEWEST, CANDIDATES // block(chunks))
    buffers = {
        "best": ("int64", chunks, 2), "masses": ("int64", chunks), "tops": ("int32", chunks, 4),
        "raw": ("float32", chunks, 2), "floors": ("int64", chunks), "candidates": ("int64", chunks, kept),
        "raw_candidates": ("int64", chunks, RAW_CANDIDATES),
    }  # fmt: skip
    scratch = {name: to.scratch(o["ids"], name, dtype, rows, *shape) for name, (dtype, *shape) in buffers.items()}
    names = ("logits", "slots", "positions", "ints", "floats", "bias_ids", "bias_values", "grammar", "counts")
    tables = {
        **{name: o[name] for name in names}, "last": o.get("last"), **scratch, "VOCAB": instruction.attrs["vocab"],
        "WIDTH": width, "SCRATCH": to.shape(o["ints"])[0] - 1, "NC": chunks, "C": kept,
        "RC": RAW_CANDIDATES, "LIST": BIAS_LIMIT, "TOP": TOP_LOGPROBS_LIMIT,
    }  # fmt: skip
    given, grid = {**tables, "CHUNK": CHUNK_IDS}, (rows, chunks, 1)
    to.launch("sample.sample_chunks", (index, index), grid, given, warps=16, stages=1, fp_fusion=False)
    outputs = ("slot_token", "slot_position", "ids", "status", "logprobs", "top_ids", "top_logprobs")
    warps = 8 if to.architecture.tensor_cores else 16  # what spills nowhere
    first = to.scratch(o["ids"], "first", "int64", rows, RANKED)
    given = {
        **tables, **{name: o[name] for name in outputs}, "first": first, "NCP": block(chunks), "K": RANKED,
    }  # fmt: skip
    to.launch("sample_merge.sample_merge", (index, index), (rows, 1, 1), given, warps=warps, stages=1, fp_fusion=False)
    return 1
