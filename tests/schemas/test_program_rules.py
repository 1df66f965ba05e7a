"""Each rule that a program must keep, broken in a bundle whose digests are right: the rule alone has to notice it."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from drafts import Change, Draft, assert_found, refusal
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.manifest import Manifest
from qpack_schemas.program import Kind, Program
from qpack_schemas.program_rules import check_code

Sizes = dict[str, list[int | str]]


@pytest.fixture(scope="module")
def whole(tiny_bundle: Callable[[str], Path]) -> Draft:
    return Draft.read(tiny_bundle("tiny-qwen3_5"))


def edit(op: str, part: str, name: str, value: object, kind: Kind = "decode") -> Change:
    return lambda draft: draft.edit(op, part, name, value, kind)


def reshape(op: str, sizes: Sizes, kind: Kind = "decode") -> Change:
    """Other shapes for buffers and tensors, by name; the finding is expected at the first `op`."""

    def change(draft: Draft) -> str:
        for name, shape in sizes.items():
            draft.set(name, "shape", shape, kind)
        return draft.find(op, kind)[0]

    return change


def move(name: str, key: str, value: object, op: str) -> Change:
    """Another arena or dtype for a buffer; the finding is expected at the first `op`."""

    def change(draft: Draft) -> str:
        draft.set(name, key, value)
        return draft.find(op)[0]

    return change


def unknown_operation(draft: Draft) -> str:
    place, instruction = draft.find("silu_mul")
    instruction["op"] = "exec"
    return place


def swapped(op: str, part: str, a: str, b: str) -> Change:
    def change(draft: Draft) -> str:
        place, instruction = draft.find(op)
        entries = instruction[part]
        entries[a], entries[b] = entries[b], entries[a]
        return place

    return change


def table_of_a_program(draft: Draft) -> str:
    """The host writes sampling tables once for both programs."""
    for program in draft.programs.values():
        program["buffers"]["sampling.ints"] = {**draft.manifest["buffers"]["sampling.ints"], "offset": 1 << 20}
    del draft.manifest["buffers"]["sampling.ints"]
    return draft.find("sample")[0]


def without_first(draft: Draft) -> str:
    """Its outputs become what looks like inputs from the host, so that nothing but the order tells."""
    program = draft.programs["decode"]
    del program["code"][0]
    for name in ("tokens", "positions"):
        program["buffers"][name] |= {"arena": "io", "offset": 1 << 20}
    return "programs/decode.json#/code/0"


def without_last(draft: Draft) -> str:
    del draft.programs["decode"]["code"][-1]
    return f"programs/decode.json#/code/{len(draft.programs['decode']['code']) - 1}"


def rows_in_the_middle(draft: Draft) -> str:
    code = draft.programs["decode"]["code"]
    code.insert(5, code[0])
    return "programs/decode.json#/code/5"


def one_row_of_logits(draft: Draft) -> str:
    for name in ("logits", "final.x", "3.post.h", "ids", "status", "logprobs", "top_ids", "top_logprobs"):
        shape = draft.programs["decode"]["buffers"][name]["shape"]
        draft.set(name, "shape", [1, *shape[1:]])
    return draft.find("sample")[0]


def logits_from_nowhere(draft: Draft) -> str:
    draft.programs["decode"]["code"] = [i for i in draft.programs["decode"]["code"] if i["op"] != "linear_int8"]
    return draft.find("sample")[0]


def all_prompt_rows_sampled(draft: Draft) -> str:
    return draft.edit("sample", "inputs", "last", None, "prefill")


def a_weight_takes_the_name_of_a_buffer(draft: Draft) -> str:
    return draft.edit("rms_norm", "inputs", "x", "norm.weight")


WIDE_HEADS: Sizes = {"3.attn.q": ["R", 16, 32], "3.attn.y": ["R", 512]}
WIDE_DELTA: Sizes = {
    "0.delta.memory": [5, 16, 32, 32], "layers.0.delta.ba": [32, 128], "layers.0.delta.a_log": [16],
    "layers.0.delta.dt_bias": [16], "0.delta.y": ["R", 512], "0.delta.u": ["R", 640],
}  # fmt: skip
WIDE_CONVOLUTION: Sizes = {"layers.0.delta.conv": [512, 4], "0.delta.ring": [5, 512, 4], "0.delta.u": ["R", 512]}
NARROW_VOCAB: Sizes = {"logits": ["R", 500], "counts": [5, 500], "sampling.grammar": [5, 15]}

BROKEN: dict[str, tuple[Change, str]] = {
    # the line of the instruction
    "unknown operation": (unknown_operation, "unknown operation 'exec'"),
    "input missing": (edit("attention", "inputs", "slots", None), "lacks 'slots' in inputs"),
    "output missing": (edit("silu_mul", "outputs", "y", None), "lacks 'y' in outputs"),
    "update missing": (edit("causal_conv1d", "updates", "ring", None), "lacks 'ring' in updates"),
    "update passed as input": (edit("attention", "updates", "k", "3.attn.k"), "has no 'k' in updates"),
    "unknown operand": (edit("silu_mul", "inputs", "callback", "h"), "has no 'callback' in inputs"),
    "unknown buffer": (edit("silu_mul", "inputs", "x", "nowhere"), "names the unknown buffer 'nowhere'"),
    "attribute missing": (edit("attention", "attrs", "context", None), "lacks the attribute 'context'"),
    "attribute unknown": (edit("silu_mul", "attrs", "context", 128), "has no attribute 'context'"),
    "attribute of another type": (edit("rms_norm", "attrs", "eps", 1), "'eps' is 1, not float"),
    "truth as a number": (edit("attention", "attrs", "context", True), "'context' is True, not int"),
    "number as a truth": (edit("rms_norm", "attrs", "unit_offset", 1), "'unit_offset' is 1, not bool"),
    "sum without delta": (edit("rms_norm", "outputs", "sum", "0.post.h"), "one of 'delta' and 'sum'"),
    "norm of q without norm of k": (edit("rope_kv_write", "inputs", "k_norm", None), "one of 'q_norm' and 'k_norm'"),
    # the order
    "rows left out": (without_first, "a decode program begins with rows_decode"),
    "sample left out": (without_last, "a program ends with sample"),
    "rows in the middle": (rows_in_the_middle, "stands only at the begin or the end"),
    "all rows of a prompt sampled": (all_prompt_rows_sampled, "lacks 'last' in inputs"),
    "one choice for many rows": (one_row_of_logits, "there must be logits for every row"),
    "logits from nowhere": (logits_from_nowhere, "logits='logits' is read before it is written"),
    "read before it is written": (edit("silu_mul", "inputs", "x", "1.mlp.gate_up.y"), "is read before it is written"),
    "written twice": (edit("silu_mul", "outputs", "y", "h"), "y='h' is written a second time"),
    "two outputs on one buffer": (edit("rows_decode", "outputs", "tokens", "positions"), "always the buffer 'tokens'"),
    "io read before it is written": (edit("embed_int8", "inputs", "tokens", "ids"), "always the buffer 'tokens'"),
    # who may touch what
    "work as a weight": (edit("embed_int8", "inputs", "table", "h"), "is in arena work, not weights"),
    "state as a weight": (edit("embed_int8", "inputs", "table", "3.attn.k"), "is in arena state, not weights"),
    "weight as a value": (a_weight_takes_the_name_of_a_buffer, "is in arena weights, not io or work"),
    "state as a value": (edit("silu_mul", "inputs", "x", "0.delta.ring"), "is in arena state, not io or work"),
    "state overwritten": (edit("silu_mul", "outputs", "y", "counts"), "is in arena state, not io or work"),
    "table overwritten": (edit("silu_mul", "outputs", "y", "sampling.floats"), "it outlives the step"),
    "work as state": (edit("causal_conv1d", "updates", "ring", "h"), "is in arena work, not state"),
    "host's input in work": (move("slots", "arena", "work", "rows_decode"), "is in arena work, not io"),
    "host's output in work": (move("ids", "arena", "work", "sample"), "is in arena work, not io"),
    "table of one program": (table_of_a_program, "the manifest must place it"),
    "slots for positions": (swapped("attention", "inputs", "slots", "positions"), "always the buffer 'slots'"),
    "tokens for positions": (swapped("rows_decode", "outputs", "tokens", "positions"), "always the buffer 'tokens'"),
    "status for ids": (swapped("sample", "outputs", "ids", "status"), "always the buffer 'ids'"),
    "position for token": (swapped("sample", "updates", "slot_token", "slot_position"), "always the buffer"),
    "k for v": (swapped("attention", "inputs", "k", "v"), "says which operand it is"),
    "any row taken": (edit("take_rows", "inputs", "rows", "slot", "prefill"), "always the buffer 'last'"),
    "start for slot": (edit("rows_prefill", "inputs", "slot", "start", "prefill"), "always the buffer 'slot'"),
    # dtypes and shapes
    "activation dtype": (move("0.mlp.act", "dtype", "float32", "silu_mul"), "y is float32, not bfloat16"),
    "cache dtype": (move("3.attn.k", "dtype", "float32", "rope_kv_write"), "k is float32, not bfloat16"),
    "tokens as floats": (move("tokens", "dtype", "float32", "rows_decode"), "tokens is float32, not int32"),
    "counts too wide": (move("counts", "dtype", "int32", "rows_decode"), "counts is int32, not int16"),
    "memory in half": (move("0.delta.memory", "dtype", "bfloat16", "gated_delta"), "memory is bfloat16, not float32"),
    "logits in half": (move("logits", "dtype", "bfloat16", "sample"), "logits is bfloat16, not float32"),
    "codes as floats": (edit("linear_int4", "inputs", "q", "layers.0.delta.ba"), "q is bfloat16, not int32"),
    "dimensions": (reshape("silu_mul", {"0.mlp.act": ["R", 384, 1]}), "y has 3 dimensions, not 2"),
    "rows that do not follow the bucket": (reshape("embed_int8", {"h": [4, 128]}), "y: dimension R is 4, not R"),
    "rows that follow the bucket": (reshape("take_rows", {"final.last": ["R", 128]}, "prefill"), "dimension 1 is R"),
    "many rows for some": (reshape("linear_int8", {"logits": [4, 512], "final.x": [4, 128]}), "T is 4, not R or 1"),
    "int8 codes as int4": (edit("linear_int8", "inputs", "q", "layers.0.mlp.down.q"), "q is int32, not int8"),
    "int4 codes as int8": (edit("linear_int4", "inputs", "q", "embed.q"), "q is int8, not int32"),
    "int8 codes of fewer inputs": (reshape("linear_int8", {"embed.q": [512, 64]}), "K^128 is 64, not 128"),
    "int8 codes of fewer outputs": (reshape("linear_int8", {"embed.q": [448, 128]}), "dimension N is 512, not 448"),
    "int8 scales of more inputs": (reshape("linear_int8", {"embed.scale": [512, 2]}), "K^128/128 is 2, not 1"),
    "int8 table of wider rows": (reshape("embed_int8", {"embed.q": [512, 256]}), "H^128 is 256, not 128"),
    "int8 table with fewer scales": (reshape("embed_int8", {"embed.scale": [511, 1]}), "dimension V is 511, not 512"),
    "half the values": (reshape("silu_mul", {"0.mlp.act": ["R", 192]}), "dimension 2*I is 768, not 384"),
    "codes of fewer inputs": (edit("linear_int4", "inputs", "q", "layers.0.mlp.down.q"), "K^128/16 is 24, not 8"),
    "zero points as floats": (
        edit("linear_int4", "inputs", "zero", "layers.0.delta.qkvz.scale"),
        "zero is bfloat16, not int8",
    ),
    "zero points of int8 codes": (edit("linear_int4", "inputs", "zero", "embed.q"), "zero: dimension K^128/128 is 512"),
    "scales of fewer outputs": (reshape("linear_int4", {"layers.0.delta.qkvz.scale": [1, 320]}), "is 320, not 384"),
    "few parameters": (reshape("sample", {"sampling.ints": [5, 5]}), "ints: dimension 6 is 5, not 6"),
    "few biases": (reshape("sample", {"sampling.bias_ids": [5, 256]}), "bias_ids: dimension 512 is 256"),
    "narrow grammar": (reshape("sample", {"sampling.grammar": [5, 15]}), "grammar: dimension V/32 is 15, not 16"),
    "narrow counts": (reshape("sample", {"counts": [5, 480]}), "counts: dimension V is 480, not 512"),
    "few logprobs": (reshape("sample", {"top_ids": ["R", 19]}), "top_ids: dimension 20 is 19"),
    # relations
    "x without v": (reshape("rope_kv_write", WIDE_HEADS), "X >= (A + 2*G) * D"),
    "rotation beyond the head": (
        reshape("rope_kv_write", {"rope": [128, 2, 17]}),
        "2*F <= D does not hold",
    ),
    "rotation beyond the table": (reshape("rope_kv_write", {"rope": [127, 2, 4]}), "L >= context does not hold"),
    "heads without keys": (
        reshape("attention", {"3.attn.k": [513, 3, 32], "3.attn.v": [513, 3, 32]}),
        "A % G == 0 does not hold",
    ),
    "narrow gate": (reshape("attention", WIDE_HEADS), "X >= A*D does not hold"),
    "channels without values": (
        reshape("causal_conv1d", WIDE_CONVOLUTION),
        "X >= C does not hold",
    ),
    "outputs without z": (reshape("gated_delta", WIDE_DELTA), "X >= N*E does not hold"),
    "half a key head": (reshape("gated_delta", {"0.delta.u": ["R", 255]}), "(C - N*E) % (2*D) == 0 does not hold"),
    "no key head": (reshape("gated_delta", {"0.delta.u": ["R", 128]}), "N % ((C - N*E) / (2*D)) == 0 does not"),
    "three key heads": (reshape("gated_delta", {"0.delta.u": ["R", 320]}), "N % ((C - N*E) / (2*D)) == 0 does not"),
    "ids without logits": (edit("sample", "attrs", "vocab", 513), "0 < vocab <= V does not hold"),
    "no ids": (edit("sample", "attrs", "vocab", 0), "0 < vocab <= V does not hold"),
    "half a word of grammar": (reshape("sample", NARROW_VOCAB), "V % 32 == 0 does not hold"),
}  # fmt: skip


@pytest.mark.parametrize("rule", BROKEN)
def test_a_program_that_breaks_a_rule_is_refused_at_the_instruction(whole: Draft, tmp_path: Path, rule: str):
    change, message = BROKEN[rule]
    draft = whole.copy()
    where = change(draft)
    assert_found(refusal(draft.write(tmp_path / "b"), digests=False), where, message)


def broken(draft: Draft, kind: Kind) -> list[str]:
    program = Program.from_json(draft.programs[kind])
    return [f.where for f in check_code(program, shared_buffers(cast(Manifest, draft.manifest)), kind)]


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_an_instruction_left_out_or_doubled_never_passes(whole: Draft, kind: Kind):
    assert not broken(whole, kind)
    for index in range(len(whole.programs[kind]["code"])):
        draft = whole.copy()
        del draft.programs[kind]["code"][index]
        assert broken(draft, kind), f"without {index}"
        draft = whole.copy()
        draft.programs[kind]["code"].insert(index, draft.programs[kind]["code"][index])
        place = f"{kind}#/code/{index + 1}"
        assert place in broken(draft, kind), f"twice {index}"


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_an_operand_left_out_never_passes_unless_it_is_optional(whole: Draft, kind: Kind):
    passed = set[str]()
    for index, instruction in enumerate(whole.programs[kind]["code"]):
        for part in ("inputs", "outputs", "updates", "attrs"):
            for name in instruction.get(part, {}):
                draft = whole.copy()
                del draft.programs[kind]["code"][index][part][name]
                if f"{kind}#/code/{index}" not in broken(draft, kind):
                    passed.add(f"{instruction['op']}.{name}")
    assert passed == {"attention.gate"}


def test_a_buffer_that_no_instruction_names_is_refused(whole: Draft, tmp_path: Path):
    draft = whole.copy()
    draft.programs["decode"]["buffers"]["spare"] = {"arena": "work", "dtype": "int32", "shape": [1], "offset": 0}
    findings = refusal(draft.write(tmp_path / "b"), digests=False)
    assert_found(findings, "programs/decode.json#/buffers/spare", "is used by no instruction")


def test_a_buffer_that_hides_a_shared_one_is_refused(whole: Draft, tmp_path: Path):
    draft = whole.copy()
    draft.programs["decode"]["buffers"]["counts"] = dict(draft.manifest["buffers"]["counts"], arena="work")
    findings = refusal(draft.write(tmp_path / "b"), digests=False)
    assert_found(findings, "programs/decode.json#/buffers/counts", "has the name of a buffer shared by both programs")
