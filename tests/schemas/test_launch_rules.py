"""Every rule of launch tables, broken once in a table of a handful of launches that keeps them all."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from qpack_schemas.errors import Finding
from qpack_schemas.launch_rules import TRITON_TYPES, check_table
from qpack_schemas.launch_table import LaunchTable
from qpack_schemas.manifest import Bucket, Kernel
from qpack_schemas.program import Buffer, Instruction, Program
from qpack_schemas.schema_check import check_schema

W = "kernels/sm_89/decode.json"
BUCKETS: list[Bucket] = [
    {"name": "decode-b1", "program": "decode", "rows": 1, "context": 512},
    {"name": "decode-b4", "program": "decode", "rows": 4, "context": 512},
    {"name": "prefill", "program": "prefill", "rows": 1000, "context": 512},
]


def work(dtype: str, *shape: int | str) -> Buffer:
    return Buffer("work", dtype, shape, 0)


def io(dtype: str, *shape: int | str) -> Buffer:
    return Buffer("io", dtype, shape, 0)


PROGRAM = Program(
    "decode",
    "bfloat16",
    {
        "slots": io("int32", "R"), "tokens": work("int32", "R"), "positions": work("int32", "R"),
        "h": work("bfloat16", "R", 64), "up": work("bfloat16", "R", 128), "a": work("bfloat16", "R", 64),
        "logits": io("float32", "R", 512), "ids": io("int32", "R"),
    },
    (
        Instruction(
            "rows_decode", {"slots": "slots", "slot_token": "slot_token", "slot_position": "slot_position"},
            {"tokens": "tokens", "positions": "positions"}, {"counts": "counts"},
        ),
        Instruction("embed", {"tokens": "tokens", "table": "table"}, {"y": "h"}),
        Instruction("linear_int4", {"x": "h", "q": "up.q", "scale": "up.scale", "bias": "up.bias"}, {"y": "up"}),
        Instruction("silu_mul", {"x": "up"}, {"y": "a"}),
        Instruction("linear", {"x": "a", "weight": "table"}, {"y": "logits"}),
        Instruction("sample", {"logits": "logits", "slots": "slots", "positions": "positions"}, {"ids": "ids"}),
    ),
)  # fmt: skip
SHARED = {
    **{name: Buffer("state", "int32", (5,), 0) for name in ("slot_token", "slot_position")},
    "counts": Buffer("state", "int16", (5, 512), 0),
    "table": Buffer("weights", "bfloat16", (512, 64)),
    "up.q": Buffer("weights", "int32", (8, 256)),
    "up.scale": Buffer("weights", "bfloat16", (1, 128)),
    "up.bias": Buffer("weights", "float32", (128,)),
}
ROWS = {"i32": "R"}
# `tokens` stays in registers; `up` is held as planes, so that its reader adds the bias; `sample` has scratch.
TABLE: dict[str, Any] = {
    "kind": "decode",
    "target": "cuda:sm_89",
    "work": {
        "positions": {"dtype": "int32", "shape": ["R"], "offset": 0},
        "h": {"dtype": "bfloat16", "shape": ["R", 64], "offset": 256},
        "up": {"dtype": "float32", "shape": [2, "R", 128], "offset": 512},
        "a": {"dtype": "bfloat16", "shape": ["R", 64], "offset": 256},
        "ids~best": {"dtype": "int64", "shape": ["R", 2], "offset": 512},
    },
    "launches": [
        {"kernel": "begin", "code": [0, 1], "grid": ["R", 1, 1], "after": [],
         "args": ["slots", "slot_token", "slot_position", "counts", "table", "positions", "h"]},
        {"kernel": "linear", "code": [2, 2], "grid": [2, 2, "R/8"], "after": [0],
         "args": ["h", "up.q", "up.scale", "up", ROWS]},
        {"kernel": "silu", "code": [3, 3], "grid": [1, "R", 1], "after": [1], "args": ["up", "up.bias", "a", ROWS]},
        {"kernel": "head", "code": [4, 4], "grid": [8, "R/8", 1], "after": [2], "args": ["a", "table", "logits", ROWS]},
        {"kernel": "chunks", "code": [5, 5], "grid": ["R", "C/256", 1], "after": [3],
         "args": ["logits", "slots", "positions", "ids~best"]},
        {"kernel": "merge", "code": [5, 5], "grid": ["R", 1, 1], "after": [4], "args": ["ids~best", "ids", {"i32": 7}]},
    ],
}  # fmt: skip


def dtype_of(name: str) -> str:
    return TABLE["work"][name]["dtype"] if name in TABLE["work"] else {**SHARED, **PROGRAM.buffers}[name].dtype


def kernel(args: list[Any]) -> Kernel:
    types = [TRITON_TYPES[dtype_of(arg)] if isinstance(arg, str) else "i32" for arg in args]
    return {
        "file": "", "sha256": "", "function": "", "block": 128, "shared_bytes": 0, "registers": 1, "spills": 0,
        "params": [[f"x{index}", kind] for index, kind in enumerate(types)], "constants": {},
    }  # fmt: skip


KERNELS = {launch["kernel"]: kernel(launch["args"]) for launch in TABLE["launches"]}


def findings(document: dict[str, Any], program: Program = PROGRAM) -> list[Finding]:
    broken = check_schema(document, "launch_table.v1.schema.json", W)
    return broken or check_table(LaunchTable.from_json(document), program, SHARED, KERNELS, BUCKETS, W)


def test_the_table_keeps_every_rule():
    assert findings(TABLE) == []


def at(pointer: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Another value at a place of the table; ... takes it away."""

    def change(table: dict[str, Any]) -> None:
        *path, last = pointer.split("/")
        node: Any = table
        for part in path:
            node = node[int(part)] if isinstance(node, list) else node[part]
        key: Any = int(last) if isinstance(node, list) else last
        if value is ...:
            del node[key]
        else:
            node[key] = value

    return change


def both(*changes: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        for one in changes:
            one(table)

    return change


def elsewhere(table: dict[str, Any]) -> None:
    """A launch that repeats an older run."""
    table["launches"][3]["code"] = [2, 2]


def swapped(table: dict[str, Any]) -> None:
    launches = table["launches"]
    launches[2]["code"], launches[3]["code"] = [4, 4], [3, 3]


BROKEN = {
    # the order of launches
    "a run that leaves one out": (at("launches/2/code", [4, 4]), "launches/2/code", "begins at instruction 3"),
    "a run twice, apart": (elsewhere, "launches/3/code", "begins at instruction 4, or is [3, 3] once more"),
    "runs swapped": (swapped, "launches/2/code", "is [4, 4]"),
    "runs that overlap": (at("launches/1/code", [1, 2]), "launches/1/code", "is [1, 2]"),
    "a run within a run": (at("launches/5/code", [4, 5]), "launches/5/code", "is [4, 5]"),
    "a run backwards": (at("launches/1/code", [2, 1]), "launches/1/code", "is [2, 1]"),
    "a run that begins late": (at("launches/0/code", [1, 1]), "launches/0/code", "begins at instruction 0"),
    "an end too soon": (at("launches/5", ...), "launches/4", "names their operand 'ids'"),
    "no end": (both(at("launches/5", ...), at("launches/4", ...)), "launches", "end with instruction 4, the"),
    "an end too late": (at("launches/5/code", [6, 6]), "launches", "end with instruction 6"),
    "no waiting": (at("launches/3/after", []), "launches/3/after", "is []; launches are a chain, so it is [2]"),
    "waiting for itself": (at("launches/3/after", [3]), "launches/3/after", "is [3]"),
    "waiting for the next": (at("launches/3/after", [4]), "launches/3/after", "is [4]"),
    "waiting for one further back": (at("launches/3/after", [1]), "launches/3/after", "is [1]"),
    "the first waits": (at("launches/0/after", [0]), "launches/0/after", "it is []"),
    # grids
    "a grid too deep": (at("launches/1/grid", [1, 65536, 1]), "launches/1/grid", "at most [2147483647, 65535, 65535]"),
    "a grid of nothing": (at("launches/1/grid/0", 0), "launches/1/grid/0", ""),
    "a grid by another letter": (at("launches/1/grid/0", "S"), "launches/1/grid/0", ""),
    "a grid divided by nothing": (at("launches/1/grid/0", "R/0"), "launches/1/grid/0", ""),
    "a grid of two": (at("launches/1/grid", [1, 1]), "launches/1/grid", ""),
    # arguments
    "an unknown kernel": (at("launches/1/kernel", "other"), "launches/1/kernel", "'other' is not among"),
    "an argument less": (at("launches/1/args/4", ...), "launches/1/args", "are 4, linear takes 5"),
    "an argument more": (at("launches/3/args", ["a", "table", "logits", ROWS, ROWS]), "launches/3/args", "are 5"),
    "an unknown buffer": (at("launches/1/args/0", "hh"), "launches/1/args/0", "'hh' is an unknown buffer"),
    "a buffer not held": (at("launches/0/args/5", "tokens"), "launches/0/args/5", "does not hold"),
    "another dtype": (at("launches/1/args/0", "up"), "launches/1/args/0", "'up' is *fp32, 'x0' of linear is *bf16"),
    "a scalar for a pointer": (at("launches/1/args/0", ROWS), "launches/1/args/0", "R is i32"),
    "a pointer for a scalar": (at("launches/1/args/4", "slots"), "launches/1/args/4", "'slots' is *i32"),
    "a scalar beyond int32": (at("launches/5/args/2", {"i32": 2**31}), "launches/5/args/2/i32", "greater than"),
    # operands
    "another weight": (at("launches/3/args/1", "up.scale"), "launches/3/args/1", "'up.scale' is no operand"),
    "a weight forgotten": (at("launches/3/args/1", "up.scale"), "launches/3", "names their operand 'table'"),
    "a value of another run": (at("launches/3/args/0", "h"), "launches/3/args/0", "'h' is no operand"),
    "state of another instruction": (at("launches/5/args/1", "slot_token"), "launches/5/args/1", "'slot_token' is no"),
    "a result forgotten": (at("launches/5/args/1", "slots"), "launches/4", "names their operand 'ids'"),
    "a value over runs that is not held": (
        both(at("work/positions", ...), at("launches/0/args/5", "slots"), at("launches/4/args/2", "slots")),
        "launches/0", "names their operand 'positions'"),
    # work buffers
    "an odd offset": (at("work/h/offset", 128), "work/h/offset", "128 is not a multiple of 256"),
    "a negative offset": (at("work/h/offset", -256), "work/h/offset", ""),
    "a buffer for nobody": (at("work/tokens", {"dtype": "int32", "shape": ["R"], "offset": 2048}), "work/tokens",
                            "is named by no launch"),
    "an own name": (at("work/mine", {"dtype": "int32", "shape": ["R"], "offset": 2048}), "work/mine",
                    "is no work buffer of the program; scratch has '~'"),
    "the name of io": (at("work/ids", {"dtype": "int32", "shape": ["R"], "offset": 2048}), "work/ids", "arena io"),
    "the name of a weight": (at("work/table", {"dtype": "bfloat16", "shape": ["R"], "offset": 2048}), "work/table",
                             "is a buffer of the manifest"),
    "another dtype than the program's": (at("work/h/dtype", "float16"), "work/h", "the program says bfloat16"),
    "a smaller buffer": (at("work/h/shape/1", 32), "work/h", "the program says bfloat16 ['R', 64]"),
    "planes of another width": (at("work/up/shape/2", 64), "work/up", "or float32 planes [planes, R, 128]"),
    "planes of what is no linear's": (at("work/a/shape", [2, "R", 64]), "work/a", "the program says bfloat16"),
    "rows where planes are": (at("work/up/shape", ["R", 2, 128]), "work/up", "float32 planes"),
    "rows twice": (at("work/ids~best/shape", ["R", "R"]), "work/ids~0best/shape", ""),
    "scratch at an odd offset": (at("work/ids~best/offset", 1), "work/ids~0best/offset", "not a multiple"),
    "an overlap of a value and its result": (at("work/up/offset", 256), "work/up/offset", "overlaps 'h' while both"),
    "an overlap by the second plane": (both(at("work/up/offset", 512), at("work/a/offset", 1280)), "work/a/offset",
                                       "overlaps 'up'"),
    "an overlap with what is needed later": (at("work/a/offset", 0), "work/positions/offset", "overlaps 'a'"),
    "an overlap with scratch": (at("work/ids~best/offset", 0), "work/positions/offset", "overlaps 'ids~best'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found_at_its_place(name: str):
    change, pointer, message = BROKEN[name]
    table = copy.deepcopy(TABLE)
    change(table)
    found = findings(table)
    assert any(f.where == f"{W}#/{pointer}" and message in f.message for f in found), "\n".join(map(str, found))


def renamed(table: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    table["work"][new] = table["work"].pop(old)
    for launch in table["launches"]:
        launch["args"] = [new if arg == old else arg for arg in launch["args"]]
    return table


@pytest.mark.parametrize("name", ["a~best", "logits~best", "counts~best", "ids.x~best", "x~best"])
def test_scratch_belongs_to_an_output_of_its_own_run(name: str):
    found = findings(renamed(copy.deepcopy(TABLE), "ids~best", name))
    owner = name.partition("~")[0]
    assert {f.where for f in found} == {f"{W}#/launches/4/args/3", f"{W}#/launches/5/args/0"}
    assert all(
        f"{name!r} is scratch of {owner!r}, no output of instructions 5 to 5 (sample)" in f.message for f in found
    )


@pytest.mark.parametrize("op", ["linear_int4", "linear_int8"])
def test_the_bias_of_planes_is_added_by_the_reader_and_by_nobody_else(op: str):
    code = tuple(replace(one, op=op) if one.op == "linear_int4" else one for one in PROGRAM.code)
    program = replace(PROGRAM, code=code)
    assert findings(TABLE, program) == []
    forgotten = copy.deepcopy(TABLE)
    forgotten["launches"][2]["args"][1] = "up"  # of the right type, so that only the rule of operands can tell
    assert [str(f) for f in findings(forgotten, program)] == [
        f"{W}#/launches/2: none of the launches of instructions 3 to 3 (silu_mul) names their operand 'up.bias'"
    ]
    kernels = {**KERNELS, "linear": kernel(["h", "up.q", "up.scale", "up", "up.bias"])}
    twice = copy.deepcopy(TABLE)
    twice["launches"][1]["args"][4] = "up.bias"
    found = check_table(LaunchTable.from_json(twice), program, SHARED, kernels, BUCKETS, W)
    assert [f.where for f in found] == [f"{W}#/launches/1/args/4"]


def test_the_bias_of_an_ordinary_output_is_added_by_the_linear_and_by_nobody_else():
    plain = copy.deepcopy(TABLE)
    plain["work"]["up"] = {"dtype": "bfloat16", "shape": ["R", 128], "offset": 512}
    plain["launches"][1]["args"][4] = "up.bias"
    plain["launches"][2]["args"] = ["up", "a"]
    kernels: dict[str, Kernel] = {
        **KERNELS,
        "linear": {**KERNELS["linear"], "params": [["x", "*bf16"], ["q", "*i32"], ["s", "*bf16"], ["y", "*bf16"],
                                                   ["b", "*fp32"]]},
        "silu": {**KERNELS["silu"], "params": [["x", "*bf16"], ["y", "*bf16"]]},
    }  # fmt: skip

    def found() -> list[str]:
        table = LaunchTable.from_json(plain)
        return [f.where for f in check_table(table, PROGRAM, SHARED, kernels, BUCKETS, W)]

    assert found() == []
    plain["launches"][2]["args"] = ["up", "a", "up.bias"]
    kernels["silu"]["params"].append(["b", "*fp32"])
    assert found() == [f"{W}#/launches/2/args/2"]
    plain["launches"][2]["args"].pop()
    kernels["silu"]["params"].pop()
    plain["launches"][1]["args"].pop()
    kernels["linear"]["params"].pop()
    assert found() == [f"{W}#/launches/1"]


def test_a_linear_in_one_run_with_its_reader_adds_its_bias_there():
    """Its output may stay in registers, or be held in either form."""
    fused = copy.deepcopy(TABLE)
    fused["launches"][1] = {
        "kernel": "both", "code": [2, 3], "grid": [1, 1, 1], "after": [0],
        "args": ["h", "up.q", "up.scale", "up.bias", "a"],
    }  # fmt: skip
    del fused["launches"][2], fused["work"]["up"]
    fused["work"]["a"]["offset"] = 512  # its operand and its result are live at once
    fused["work"]["ids~best"]["offset"] = 1024
    for index, launch in enumerate(fused["launches"]):
        launch["after"] = [index - 1] if index else []
    kernels = {**KERNELS, "both": kernel(fused["launches"][1]["args"])}
    assert check_table(LaunchTable.from_json(fused), PROGRAM, SHARED, kernels, BUCKETS, W) == []


def test_every_bucket_of_the_program_is_tried_and_no_other():
    """65,536 rows would be too many in y; only the prefill bucket, which is not of this table, has as many."""
    buckets: list[Bucket] = [*BUCKETS, {"name": "p", "program": "prefill", "rows": 65536, "context": 512}]
    table = LaunchTable.from_json(TABLE)
    assert check_table(table, PROGRAM, SHARED, KERNELS, buckets, W) == []
    buckets.append({"name": "d", "program": "decode", "rows": 65536, "context": 512})
    assert [str(f) for f in check_table(table, PROGRAM, SHARED, KERNELS, buckets, W)] == [
        f"{W}#/launches/2/grid: is [1, 65536, 1] in d, a GPU takes at most [2147483647, 65535, 65535]"
    ]
