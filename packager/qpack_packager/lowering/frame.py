"""What stands before and behind the layers of every program: which rows there are, which token comes next."""

from qpack_packager.lowering.builder import Builder
from qpack_schemas.sampling import BIAS_LIMIT, FLOATS, INTS, TOP_LOGPROBS_LIMIT

ROW = {"slots": "slots", "positions": "positions"}  # operands that say where a row sits
SEAT = {"slot_token": "slot_token", "slot_position": "slot_position"}


def emit_rows(b: Builder, seats: int, vocab: int) -> tuple[str, str | None]:
    """Token, slot and position of each row; the only instructions that know of padding. `seats` = slots + scratch.

    Returns the names of the tokens and, for prefill, of the last live row's index."""
    for name in SEAT:
        b.state(name, seats, dtype="int32")
    updates = {"counts": b.state("counts", seats, vocab, dtype="int16")}
    made = {name: b.work(name, "R", dtype="int32") for name in ("tokens", "positions")}
    if b.kind == "decode":
        b.emit("rows_decode", {"slots": b.io("slots", "int32", "R"), **SEAT}, made, updates)
        return "tokens", None
    given = {"prompt": b.io("prompt", "int32", "R"), **{n: b.io(n, "int32", 1) for n in ("slot", "start", "length")}}
    made |= {"slots": b.work("slots", "R", dtype="int32"), "last": b.work("last", 1, dtype="int32")}
    b.emit("rows_prefill", given, made, updates)
    return "tokens", "last"


def emit_choice(b: Builder, logits: str, seats: int, vocab: int, real_vocab_size: int, last: str | None) -> None:
    """Sampling and the advance of the slots. The tables per slot are written by the host when a request is admitted."""
    rows = b.buffers[logits].shape[0]
    inputs = {"logits": logits, **ROW, "last": last, "counts": "counts"}
    for name, dtype, width in (
        ("ints", "int32", len(INTS)),
        ("floats", "float32", len(FLOATS)),
        ("bias_ids", "int32", BIAS_LIMIT),
        ("bias_values", "float32", BIAS_LIMIT),
        ("grammar", "int32", vocab // 32),
    ):
        inputs[name] = b.shared.add_buffer("io", f"sampling.{name}", dtype, seats, width)
    outputs = {
        "ids": b.io("ids", "int32", rows),
        "status": b.io("status", "int32", rows),
        "logprobs": b.io("logprobs", "float32", rows),
        "top_ids": b.io("top_ids", "int32", rows, TOP_LOGPROBS_LIMIT),
        "top_logprobs": b.io("top_logprobs", "float32", rows, TOP_LOGPROBS_LIMIT),
    }
    b.emit("sample", inputs, outputs, SEAT, vocab=real_vocab_size)
