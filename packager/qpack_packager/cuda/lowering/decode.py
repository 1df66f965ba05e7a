"""The launches of decode programs: ten for a layer of full attention, nine for one of Gated DeltaNet.

Each function emits the launches from instruction `index` on and says how many instructions they covered.
"""

from qpack_packager.cuda.lowering.both import is_head, is_normed_embedding
from qpack_packager.cuda.lowering.launches import ROWS, Launches, block, operands
from qpack_packager.cuda.lowering.tiles import Tile
from qpack_schemas.launch_table import Scalar

SPLIT = 128  # keys of one program of attention_split
VALUE_COLUMNS = 32  # of the recurrent state in one program: fills a GPU at batch 1


def begin(to: Launches, index: int) -> int:
    """rows_decode, the embedding and the first norm, in one launch."""
    rows, embed, norm = to.program.code[index : index + 3]
    if rows.op != "rows_decode" or not is_normed_embedding(embed, norm):
        raise AssertionError("a decode program begins with rows_decode, the embedding and its norm")
    r, e, n = operands(rows), operands(embed), operands(norm)
    width = to.shape(e["y"])[1]
    seats, vocab = to.shape(r["counts"])
    given = {
        "slots": r["slots"], "slot_token": r["slot_token"], "slot_position": r["slot_position"],
        "counts": r["counts"], "table": e["table"], "scale": e.get("scale"), "weight": n["weight"],
        "positions": r["positions"], "h": e["y"], "x": n["y"], "SCRATCH": seats - 1, "V": vocab, "H": width,
        "EPS": norm.attrs["eps"], "UNIT": norm.attrs["unit_offset"], "BLOCK": block(width),
    }  # fmt: skip
    to.launch("rows.begin_decode", (index, index + 2), ("R", 1, 1), given)
    return 3


def linear_int4(to: Launches, index: int, tile: Tile) -> int:
    """Planes for whoever reads them. Of a head, which has one plane and no bias, that is the logits themselves."""
    o = operands(to.program.code[index])
    padded = to.shape(o["q"])[1] // 2
    if not is_head(to.program, index):
        to.hold(o["y"], tile.planes, o.get("bias"))
    elif tile.planes > 1 or "bias" in o:
        raise AssertionError("logits are float32, one plane without a bias")
    one = to.rows(o["x"]) == 1
    given = {
        "x": o["x"], "q": o["q"], "scale": o["scale"], "zero": o.get("zero"), "y": o["y"],
        "R": Scalar(1) if one else ROWS, "K": to.shape(o["x"])[1], "N": to.shape(o["y"])[1], "PLANES": tile.planes,
        "TILE": tile.columns, "MMA": to.architecture.tensor_cores,
    }  # fmt: skip
    grid = (padded // tile.columns, tile.planes, 1 if one else "R/8")
    warps = _tile_warps(tile, to)
    to.launch("linear_int4.linear_int4_decode", (index, index), grid, given, warps=warps)
    return 1


def _tile_warps(tile: Tile, to: Launches) -> int:
    """One for 64 columns, or for 32 of float32, whose codes take twice the registers. From sm_90 to sm_110 four warps
    would make Triton use the instructions of a warpgroup, which for so few rows take more registers and more barriers:
    two do the work of four there."""
    if to.program.activation == "float32":
        return tile.columns // 32
    return min(tile.columns // 64, 2 if 90 <= to.architecture.sm < 120 else 4)


def attention(to: Launches, index: int) -> int:
    """Blocks of keys, each in a program of its own, and then their sum."""
    instruction = to.program.code[index]
    o, held = operands(instruction), to.held(operands(instruction).get("gate"))
    _, heads, dim = to.shape(o["q"])
    lines, groups, _ = to.shape(o["k"])
    context = int(instruction.attrs["context"])
    splits = -(-context // SPLIT)
    step, warps, stages = _key_step(dim, to.program.activation)
    partial = to.scratch(o["y"], "partial", "float32", "R", heads, splits, dim)
    stats = to.scratch(o["y"], "stats", "float32", "R", heads, splits, 2)
    given = {
        "q": o["q"], "k": o["k"], "v": o["v"], "slots": o["slots"], "positions": o["positions"], "partial": partial,
        "stats": stats, "A": heads, "G": groups, "D": dim, "CONTEXT": context, "SCRATCH": lines // context,
        "SPLIT": SPLIT, "BLOCK": step, "HEADS": max(8, block(heads // groups)), "SPLITS": splits,
    }  # fmt: skip
    grid = (groups, f"C/{SPLIT}", "R")
    to.launch("attention.attention_split", (index, index), grid, given, warps=warps, stages=stages)
    gate = o.get("gate")
    given = {
        "partial": partial, "stats": stats, "gate": gate, "bias": held.bias, "positions": o["positions"], "y": o["y"],
        "R": ROWS, "A": heads, "D": dim, "X": to.shape(gate)[1] if gate else 0, "SPLIT": SPLIT, "SPLITS": splits,
        "PLANES": held.planes,
    }  # fmt: skip
    to.launch("attention.attention_combine", (index, index), (heads, "R", 1), given, warps=1 if dim < 256 else 2)
    return 1


def _key_step(dim: int, dtype: str) -> tuple[int, int, int]:
    """Keys that a program of attention_split takes at once, warps, stages: what fits the registers on every target."""
    if dtype == "float32":
        return {256: (16, 8, 1), 128: (32, 4, 2)}.get(dim, (64, 4, 2))
    return {256: (32, 4, 2), 128: (32, 4, 3)}.get(dim, (64, 4, 3))


def delta(to: Launches, index: int) -> int:
    """causal_conv1d and gated_delta: the step of a head in parts of its columns, then the gated norm of the whole."""
    conv, rule = to.program.code[index : index + 2]
    c, g = operands(conv), operands(rule)
    if rule.op != "gated_delta" or g["u"] != c["y"]:
        raise AssertionError("causal_conv1d is followed by the gated_delta that reads it")
    held = to.held(c["x"])
    channels, taps = to.shape(c["weight"])
    seats, heads, key_dim, value_dim = to.shape(g["memory"])
    columns = to.shape(c["x"])[1]
    out = to.scratch(g["y"], "out", "float32", "R", heads * value_dim)
    part = min(VALUE_COLUMNS, value_dim)
    hidden = to.shape(g["x"])[1]
    given = {
        "x": c["x"], "bias": held.bias, "hidden": g["x"], "conv": c["weight"], "ba": g["ba"], "a_log": g["a_log"],
        "dt_bias": g["dt_bias"], "slots": g["slots"], "positions": g["positions"], "ring": c["ring"],
        "memory": g["memory"], "out": out, "R": ROWS, "X": columns, "C": channels, "W": taps, "H": hidden, "N": heads,
        "KEYS": (channels - heads * value_dim) // (2 * key_dim), "D": key_dim, "E": value_dim, "SCRATCH": seats - 1,
        "PLANES": held.planes, "BLOCK_E": part, "BLOCK_H": block(hidden, 1024),
    }  # fmt: skip
    to.launch("delta.delta_step", (index, index + 1), (heads, value_dim // part, "R"), given)
    gate = to.held(g["z"])
    given = {
        "out": out, "z": g["z"], "bias": gate.bias, "norm": g["norm"], "y": g["y"], "R": ROWS,
        "X": to.shape(g["z"])[1], "N": heads, "E": value_dim, "PLANES": gate.planes, "EPS": rule.attrs["eps"],
    }  # fmt: skip
    to.launch("delta.delta_norm", (index, index + 1), (heads, "R", 1), given, warps=1)
    return 2
