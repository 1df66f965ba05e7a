"""Launches that decode and prefill programs share. Each function emits one instruction and says how many it covered."""

from qpack_packager.cuda.lowering.launches import ROWS, Launches, block, operands
from qpack_schemas.launch_table import Scalar
from qpack_schemas.program import Instruction, Program
from qpack_schemas.sampling import BIAS_LIMIT, CHUNK_IDS, TOP_LOGPROBS_LIMIT  # noqa: F401

DENSE_TILE, DENSE_STEP = 64, 128  # weight lines of a program, and columns that it multiplies at a time
FEW_ROWS, MANY_ROWS = 8, 32  # of a program of an int8 linear: those of decode, those of a prompt
ELEMENTS, WHOLE_ELEMENTS = 512, 1024  # columns of a program of silu_mul, that adds planes or has none to add


def rms_norm(to: Launches, index: int) -> int:
    instruction = to.program.code[index]
    o = operands(instruction)
    (width,) = to.shape(o["weight"])
    held = to.held(o.get("delta"))
    given = {
        "x": o["x"], "delta": o.get("delta"), "bias": held.bias, "weight": o["weight"], "y": o["y"],
        "sum": o.get("sum"), "R": ROWS, "H": width, "PLANES": held.planes, "EPS": instruction.attrs["eps"],
        "UNIT": instruction.attrs["unit_offset"], "BLOCK": block(width),
    }  # fmt: skip
    to.launch("norm.rms_norm", (index, index), (to.rows(o["x"]), 1, 1), given, warps=_warps(width))
    return 1


def linear(to: Launches, index: int) -> int:
    """A matrix that stays as it is: the head, and what the policy keeps."""
    o = operands(to.program.code[index])
    lines, width = to.shape(o["weight"])
    one = to.rows(o["x"]) == 1
    given = {
        "x": o["x"], "weight": o["weight"], "bias": o.get("bias"), "y": o["y"],
        "R": Scalar(1) if one else ROWS, "K": width, "N": lines, "TILE": DENSE_TILE, "BLOCK_K": DENSE_STEP,
        "MMA": to.architecture.tensor_cores,
    }  # fmt: skip
    to.launch("linear.linear", (index, index), (-(-lines // DENSE_TILE), 1 if one else "R/8", 1), given, warps=2)
    return 1


def linear_int8(to: Launches, index: int) -> int:
    """The head, and layers that are int8. A prompt's rows are many, so that its weights are read less often."""
    o = operands(to.program.code[index])
    lines, _ = to.shape(o["q"])
    one = to.rows(o["x"]) == 1
    rows = MANY_ROWS if to.program.kind == "prefill" and not one else FEW_ROWS
    given = {
        "x": o["x"], "q": o["q"], "scale": o["scale"], "bias": o.get("bias"), "y": o["y"],
        "R": Scalar(1) if one else ROWS, "K": to.shape(o["x"])[1], "N": lines, "TILE_M": rows, "TILE": DENSE_TILE,
        "MMA": to.architecture.tensor_cores,
    }  # fmt: skip
    grid = (-(-lines // DENSE_TILE), 1 if one else f"R/{rows}", 1)
    to.launch("linear.linear_int8", (index, index), grid, given, warps=2)
    return 1


def is_head(program: Program, index: int) -> bool:
    """Whether instruction `index`, a product, gives the logits: they are no work buffer, so they can't be planes."""
    return program.buffers[program.code[index].outputs["y"]].arena == "io"


def is_normed_embedding(line: Instruction, norm: Instruction) -> bool:
    """Whether `line` is an embedding, dense or int8, and `norm` the norm of what it reads."""
    embeds = line.op in ("embed", "embed_int8")
    return embeds and norm.op == "rms_norm" and "delta" not in norm.inputs and norm.inputs["x"] == line.outputs["y"]


def silu_mul(to: Launches, index: int) -> int:
    o = operands(to.program.code[index])
    (width,) = to.shape(o["y"])[1:]
    held = to.held(o["x"])
    elements = ELEMENTS if held.planes else WHOLE_ELEMENTS
    given = {
        "x": o["x"], "bias": held.bias, "y": o["y"], "R": ROWS, "I": width, "PLANES": held.planes, "BLOCK": elements,
    }  # fmt: skip
    to.launch("silu.silu_mul", (index, index), (-(-width // elements), "R", 1), given)
    return 1


def rope_kv_write(to: Launches, index: int) -> int:
    instruction = to.program.code[index]
    o, held = operands(instruction), to.held(operands(instruction)["x"])
    _, heads, dim = to.shape(o["q"])
    lines, groups, _ = to.shape(o["k"])
    context = int(instruction.attrs["context"])
    given = {
        "x": o["x"], "bias": held.bias, "rope": o["rope"], "q_norm": o.get("q_norm"), "k_norm": o.get("k_norm"),
        "slots": o["slots"], "positions": o["positions"], "k": o["k"], "v": o["v"], "q": o["q"], "R": ROWS,
        "X": to.shape(o["x"])[1], "A": heads, "G": groups, "D": dim, "F": to.shape(o["rope"])[2], "CONTEXT": context,
        "SCRATCH": lines // context, "PLANES": held.planes, "EPS": instruction.attrs["eps"],
        "UNIT": instruction.attrs["unit_offset"],
    }  # fmt: skip
    to.launch("rope.rope_kv_write", (index, index), (heads + 2 * groups, "R", 1), given, warps=1)
    return 1


def _warps(width: int) -> int:
    """Of a program that holds a whole row: about eight elements a thread."""
    return max(1, min(8, block(width) // 256))
