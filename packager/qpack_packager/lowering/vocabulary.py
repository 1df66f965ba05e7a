"""Embedding and head: the two matrices with a line for every token, each dense or quantized by itself.

Those of a tied model are one tensor of the checkpoint. In the bundle they are one module if both are stored alike.
"""

from dataclasses import dataclass

from qpack_packager.lowering.builder import Builder
from qpack_packager.lowering.modules import Rows
from qpack_packager.serving import EmbeddingForm, HeadForm


@dataclass(frozen=True)
class Vocabulary:
    name: str  # of the module
    source: str  # checkpoint tensor
    shape: tuple[int, int]  # of the source, [ids, hidden]
    width: int  # lines as stored, those behind the ids zero
    form: HeadForm | EmbeddingForm


def emit_embedding(b: Builder, tokens: str, table: Vocabulary, h: str) -> None:
    """h [R, H] = the lines of the tokens."""
    names = _module(b, table)
    if table.form == "int8":
        b.emit("embed_int8", {"tokens": tokens, "table": names["q"], "scale": names["scale"]}, {"y": h})
    else:
        b.emit("embed", {"tokens": tokens, "table": names["weight"]}, {"y": h})


def emit_head(b: Builder, x: str, head: Vocabulary, logits: str) -> None:
    """logits = x @ head^T."""
    op = {"dense": "linear", "int8": "linear_int8", "int4": "linear_int4"}[head.form]
    b.emit(op, {"x": x, **_module(b, head)}, {"y": logits})


def _module(b: Builder, one: Vocabulary) -> dict[str, str]:
    """Operand of a product -> tensor of the bundle, once it is a module."""
    rows = Rows(one.source)
    if one.form == "dense":
        stored = (one.width, one.shape[1])
        return {"weight": b.dense(f"{one.name}.weight", {rows: one.shape}, stored=stored)}
    b.shared.expect(one.source, one.shape)
    return b.quantized(one.name, one.form, {rows: one.shape[0]}, one.shape[1], one.width)
