"""The launches of prefill programs. Rows of one slot in order; one kernel serves every length.

Each function emits the launches from instruction `index` on and says how many instructions they covered.
"""

from qpack_packager.cuda.lowering.both import is_normed_embedding
from qpack_packager.cuda.lowering.launches import ROWS, Launches, block, operands

TILE_ROWS, TILE_COLUMNS = 32, 128  # of a program of an int4 linear
FEWER_ROWS = 16  # for sm_80, where Triton's code takes more registers, and beside zero points, which take some
ELEMENTS = 1024  # channels of a program of a convolution
COUNTS = 4096  # of a program that clears a line of counts
PROMPT_ROWS = 256  # of a program of rows_prefill
VALUE_COLUMNS = 16  # of the recurrent state in one program: one warp, so that no reduction crosses warps


def begin(to: Launches, index: int) -> int:
    """rows_prefill. The counts of the slot are cleared first, in a launch of its own, since many programs do it."""
    o = operands(to.program.code[index])
    seats, vocab = to.shape(o["counts"])
    given = {"slot": o["slot"], "start": o["start"], "counts": o["counts"], "V": vocab, "BLOCK": COUNTS}
    to.launch("rows.counts_reset", (index, index), (-(-vocab // COUNTS), 1, 1), given)
    names = ("prompt", "slot", "start", "length", "counts", "tokens", "slots", "positions", "last")
    given = {**{name: o[name] for name in names}, "R": ROWS, "SCRATCH": seats - 1, "V": vocab, "BLOCK": PROMPT_ROWS}
    to.launch("rows.rows_prefill", (index, index), (f"R/{PROMPT_ROWS}", 1, 1), given)
    return 1


def embed(to: Launches, index: int) -> int:
    """The embedding and the first norm, in one launch."""
    line, norm = to.program.code[index : index + 2]
    if not is_normed_embedding(line, norm):
        raise AssertionError("the embedding is followed by its norm")
    e, n = operands(line), operands(norm)
    width = to.shape(e["y"])[1]
    given = {
        "tokens": e["tokens"], "table": e["table"], "scale": e.get("scale"), "weight": n["weight"], "h": e["y"],
        "x": n["y"], "H": width, "EPS": norm.attrs["eps"], "UNIT": norm.attrs["unit_offset"], "BLOCK": block(width),
    }  # fmt: skip
    to.launch("rows.embed_norm", (index, index + 1), ("R", 1, 1), given)
    return 2


def linear_int4(to: Launches, index: int) -> int:
    o = operands(to.program.code[index])
    padded = to.shape(o["q"])[1] // 2
    columns = TILE_COLUMNS if padded % TILE_COLUMNS == 0 else 64
    rows = FEWER_ROWS if to.architecture.sm == 80 or "zero" in o else TILE_ROWS
    given = {
        "x": o["x"], "q": o["q"], "scale": o["scale"], "zero": o.get("zero"), "bias": o.get("bias"), "y": o["y"],
        "R": ROWS, "K": to.shape(o["x"])[1], "N": to.shape(o["y"])[1], "TILE_M": rows, "TILE_N": columns,
        "MMA": to.architecture.tensor_cores,
    }  # fmt: skip
    grid = (padded // columns, f"R/{rows}", 1)
    to.launch("linear_int4.linear_int4_prefill", (index, index), grid, given, warps=columns // 64)
    return 1


def attention(to: Launches, index: int) -> int:
    instruction = to.program.code[index]
    o = operands(instruction)
    _, heads, dim = to.shape(o["q"])
    lines, groups, _ = to.shape(o["k"])
    context, gate = int(instruction.attrs["context"]), o.get("gate")
    rows, step, warps, stages = _attention_tile(dim, to)
    given = {
        "q": o["q"], "k": o["k"], "v": o["v"], "slots": o["slots"], "positions": o["positions"], "gate": gate,
        "y": o["y"], "R": ROWS, "A": heads, "G": groups, "D": dim, "CONTEXT": context,
        "X": to.shape(gate)[1] if gate else 0, "SCRATCH": lines // context, "TILE_M": rows,
        "BLOCK": step,
    }  # fmt: skip
    grid = (heads, f"R/{rows}", 1)
    to.launch("attention_prefill.attention_prefill", (index, index), grid, given, warps=warps, stages=stages)
    return 1


def _attention_tile(dim: int, to: Launches) -> tuple[int, int, int, int]:
    """Queries of a program, keys that it takes at once, warps, stages: what fits the registers."""
    if not to.architecture.tensor_cores:
        return (16, 16, 8, 1) if dim == 256 else (16, 32, 4, 2)
    if to.program.activation == "float32":
        return {256: (16, 16, 8, 1), 128: (16, 32, 8, 1)}.get(dim, (16, 64, 4, 2))
    return (32, 32, 8 if dim == 256 else 4, 2)


def causal_conv1d(to: Launches, index: int) -> int:
    """Reads the ring, and only then, in a second launch, writes it."""
    o = operands(to.program.code[index])
    channels, taps = to.shape(o["weight"])
    seats = to.shape(o["ring"])[0]
    row = {"slots": o["slots"], "positions": o["positions"], "ring": o["ring"]}
    sizes = {
        "X": to.shape(o["x"])[1], "C": channels, "W": taps, "SCRATCH": seats - 1, "BLOCK": ELEMENTS,
    }  # fmt: skip
    grid = (-(-channels // ELEMENTS), "R", 1)
    to.launch(
        "delta_prefill.conv_prefill",
        (index, index),
        grid,
        {"x": o["x"], "conv": o["weight"], "u": o["y"], **row, **sizes},
    )
    to.launch("delta_prefill.ring_write", (index, index), grid, {"x": o["x"], "R": ROWS, **row, **sizes})
    return 1


def gated_delta(to: Launches, index: int) -> int:
    """Gates of all rows, the scan over the rows, the gated norm."""
    instruction = to.program.code[index]
    o = operands(instruction)
    seats, heads, key_dim, value_dim = to.shape(o["memory"])
    channels, hidden = to.shape(o["u"])[1], to.shape(o["x"])[1]
    gates = to.scratch(o["y"], "gates", "float32", "R", 2 * heads)
    out = to.scratch(o["y"], "out", "float32", "R", heads * value_dim)
    given = {
        "hidden": o["x"], "ba": o["ba"], "a_log": o["a_log"], "dt_bias": o["dt_bias"], "gates": gates, "H": hidden,
        "N": heads, "BLOCK_H": block(hidden, 1024),
    }  # fmt: skip
    to.launch("delta_prefill.delta_gates", (index, index), (heads, "R", 1), given)
    part = min(VALUE_COLUMNS, value_dim)
    given = {
        "u": o["u"], "gates": gates, "slots": o["slots"], "positions": o["positions"], "memory": o["memory"],
        "out": out, "R": ROWS, "C": channels, "N": heads,
        "KEYS": (channels - heads * value_dim) // (2 * key_dim), "D": key_dim, "E": value_dim, "SCRATCH": seats - 1,
        "BLOCK_E": part,
    }  # fmt: skip
    to.launch("delta_prefill.delta_scan", (index, index), (heads, value_dim // part, 1), given, warps=1)
    given = {
        "out": out, "z": o["z"], "bias": None, "norm": o["norm"], "y": o["y"], "R": ROWS, "X": to.shape(o["z"])[1],
        "N": heads, "E": value_dim, "PLANES": 0, "EPS": instruction.attrs["eps"],
    }  # fmt: skip
    to.launch("delta.delta_norm", (index, index), (heads, "R", 1), given, warps=1)
    return 1


def take_rows(to: Launches, index: int) -> int:
    o = operands(to.program.code[index])
    width = to.shape(o["x"])[1]
    given = {"x": o["x"], "rows": o["rows"], "y": o["y"], "H": width, "BLOCK": block(width)}
    to.launch("rows.take_rows", (index, index), (1, 1, 1), given)
    return 1
