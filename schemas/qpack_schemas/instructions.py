"""The instruction set: one signature line each, which is all that validation knows about operands, dtypes and shapes.

A program works on rows; a row is (token, slot, position). The seats of `S` slots are numbered 0 .. S-1 and the last one
is the scratch slot: padding rows sit on it with token 0 at position 0.

    op(inputs, updated!) -> outputs {attributes}        `x?` may be absent, `x!` is updated in place
    i: int32   h: int16   f: float32   o: activation dtype or float32   (none): the program's activation dtype
    w: float weight   t: float32 weight   p: int32 weight of packed int4 codes   b: int8 weight
    R is the rows of the bucket, T is R or 1, other letters are sizes that must agree within the line;
    `K^128` is K rounded up to a multiple of 128.

What each instruction computes is defined by the reference executor, one function per line.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

SIGNATURES = """
rows_decode(i:slots[R], i:slot_token[S], i:slot_position[S], h:counts![S,V]) -> i:tokens[R], i:positions[R] {}
rows_prefill(i:prompt[R], i:slot[1], i:start[1], i:length[1], h:counts![S,V])
    -> i:tokens[R], i:slots[R], i:positions[R], i:last[1] {}
embed(i:tokens[R], w:table[V,H]) -> y[R,H] {}
embed_int8(i:tokens[R], b:table[V,H^128], w:scale[V,H^128/128]) -> y[R,H] {}
rms_norm(x[T,H], delta?[T,H], w:weight[H]) -> y[T,H], sum?[T,H] {eps:float, unit_offset:bool}
linear_int4(x[T,K], p:q[K^128/16,N^64*2], w:scale[K^128/128,N^64], b:zero?[K^128/128,N^64], w:bias?[N]) -> o:y[T,N] {}
linear_int8(x[T,K], b:q[N,K^128], w:scale[N,K^128/128], w:bias?[N]) -> o:y[T,N] {}
linear(x[T,K], w:weight[N,K], w:bias?[N]) -> o:y[T,N] {}
rope_kv_write(x[R,X], t:rope[L,2,F], w:q_norm?[D], w:k_norm?[D], i:slots[R], i:positions[R], k![P,G,D], v![P,G,D])
    -> q[R,A,D] {context:int, eps:float, unit_offset:bool}
attention(q[R,A,D], i:slots[R], i:positions[R], k[P,G,D], v[P,G,D], gate?[R,X]) -> y[R,A*D] {context:int}
silu_mul(x[R,2*I]) -> y[R,I] {}
causal_conv1d(x[R,X], w:weight[C,W], i:slots[R], i:positions[R], ring![S,C,W]) -> y[R,C] {}
gated_delta(u[R,C], x[R,H], z[R,X], w:ba[2*N,H], t:a_log[N], t:dt_bias[N], w:norm[E], i:slots[R], i:positions[R],
    f:memory![S,N,D,E]) -> y[R,N*E] {eps:float}
take_rows(x[R,H], i:rows[1]) -> y[1,H] {}
sample(f:logits[T,V], i:slots[R], i:positions[R], i:last?[T], i:ints[S,6], f:floats[S,6], i:bias_ids[S,512],
    f:bias_values[S,512], i:grammar[S,V/32], h:counts[S,V], i:slot_token![S], i:slot_position![S])
    -> i:ids[T], i:status[T], f:logprobs[T], i:top_ids[T,20], f:top_logprobs[T,20] {vocab:int}
"""

Sizes = Mapping[str, int]
Role = Literal["input", "update", "output"]
ATTRIBUTE_TYPES: Mapping[str, type] = {"int": int, "float": float, "bool": bool}

# What a signature line cannot say: relations between sizes (letters of the line) and attributes. Kernels index memory
# by them, so a program that breaks one must never run.
CONSTRAINTS: Mapping[str, tuple[tuple[str, Callable[[Sizes], bool]], ...]] = {
    "rope_kv_write": (
        ("x holds q, k and v: X >= (A + 2*G) * D", lambda s: s["X"] >= (s["A"] + 2 * s["G"]) * s["D"]),
        ("the rotary part lies within a head: 2*F <= D", lambda s: 2 * s["F"] <= s["D"]),
        ("the table has a line for every position: L >= context", lambda s: s["L"] >= s["context"]),
    ),
    "attention": (
        ("query heads share key heads evenly: A % G == 0", lambda s: s["A"] % s["G"] == 0),
        ("the gate has a value per query value: X >= A*D", lambda s: s.get("X", s["A"] * s["D"]) >= s["A"] * s["D"]),
    ),
    "causal_conv1d": (("x holds every channel: X >= C", lambda s: s["X"] >= s["C"]),),
    "gated_delta": (
        ("z has a value per output: X >= N*E", lambda s: s["X"] >= s["N"] * s["E"]),
        ("u holds whole key heads: (C - N*E) % (2*D) == 0", lambda s: (s["C"] - s["N"] * s["E"]) % (2 * s["D"]) == 0),
        (
            "value heads share key heads evenly: N % ((C - N*E) / (2*D)) == 0",
            lambda s: (heads := (s["C"] - s["N"] * s["E"]) // (2 * s["D"])) > 0 and s["N"] % heads == 0,
        ),
    ),
    "sample": (
        ("only ids of the logits are sampled: 0 < vocab <= V", lambda s: 0 < s["vocab"] <= s["V"]),
        ("a word of the grammar holds 32 ids: V % 32 == 0", lambda s: s["V"] % 32 == 0),
    ),
}
# Optional operands of which neither or both are given.
TOGETHER: Mapping[str, tuple[str, str]] = {"rms_norm": ("delta", "sum"), "rope_kv_write": ("q_norm", "k_norm")}


@dataclass(frozen=True)
class Operand:
    name: str
    kind: str  # i h f o w t p b, or empty for the activation dtype
    dims: tuple[str, ...]
    role: Role
    optional: bool

    @property
    def is_weight(self) -> bool:
        return self.kind in {"w", "t", "p", "b"}

    def dtypes(self, activation: str) -> tuple[str, ...]:
        """The dtypes that a buffer at this operand may have."""
        return {
            "i": ("int32",), "p": ("int32",), "h": ("int16",), "f": ("float32",), "t": ("float32",),
            "b": ("int8",), "w": ("float32", "bfloat16", "float16"), "o": (activation, "float32"), "": (activation,),
        }[self.kind]  # fmt: skip


@dataclass(frozen=True)
class Signature:
    op: str
    operands: Mapping[str, Operand]  # in the order of the line
    attributes: Mapping[str, type]

    def names(self, role: Role) -> list[str]:
        return [operand.name for operand in self.operands.values() if operand.role == role]


def evaluate(dim: str, sizes: Sizes) -> int | None:
    """The value of a dimension expression, left to right; None while a letter has no value."""
    value = 1
    for sign, letter, number, multiple in re.findall(r"([*/]?)(?:([A-Z])|(\d+))(?:\^(\d+))?", dim):
        factor = int(number) if number else sizes.get(letter)
        if factor is None:
            return None
        if multiple:
            factor = -(-factor // int(multiple)) * int(multiple)
        value = value // factor if sign == "/" else value * factor
    return value


def _parse(line: str) -> Signature:
    found = re.fullmatch(r"(\w+)\((.*)\)\s+-> (.*) \{(.*)\}", line)
    assert found, line
    op, reads, writes, attributes = found.groups()
    operands: dict[str, Operand] = {}
    for part, output in ((reads, False), (writes, True)):
        for kind, name, mark, dims in re.findall(r"(?:(\w):)?(\w+)([!?]?)\[([^\]]*)\]", part):
            role: Role = "output" if output else "update" if mark == "!" else "input"
            operands[name] = Operand(name, kind, tuple(dims.split(",")), role, mark == "?")
    pairs = re.findall(r"(\w+):(\w+)", attributes)
    return Signature(op, operands, {name: ATTRIBUTE_TYPES[kind] for name, kind in pairs})


_LINES = [" ".join(line.split()) for line in re.split(r"\n(?=\w)", SIGNATURES.strip())]
INSTRUCTIONS: Mapping[str, Signature] = {signature.op: signature for signature in map(_parse, _LINES)}

# State lives in the operands that some instruction updates; their buffers are named after them, `3.attn.k` is a `k`.
STATE = frozenset(name for signature in INSTRUCTIONS.values() for name in signature.names("update"))

# Integers say where a kernel reads and writes, and the host finds what it shares with `sample` by name. So each of
# these operands is always the same buffer: operand -> its name. No program can pass off a position as a slot.
_SAMPLING_TABLES = ("ints", "floats", "bias_ids", "bias_values", "grammar")
_OTHERWISE_NAMED = {"rows": "last", **{name: f"sampling.{name}" for name in _SAMPLING_TABLES}}
FIXED: Mapping[str, str] = {
    operand.name: _OTHERWISE_NAMED.get(operand.name, operand.name)
    for signature in INSTRUCTIONS.values()
    for operand in signature.operands.values()
    if operand.kind in {"i", "h"} or signature.op == "sample"
}
