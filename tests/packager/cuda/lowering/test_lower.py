"""Launch tables of all families: few launches, nothing forgotten, the same for every bucket, sound by the contract."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bundles import ASSETS
from checkpoints import random_checkpoint
from packager.commands.headers import write_headers
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.cuda.lowering.lower import LoweredTarget, lower_target, shared_of
from qpack_packager.cuda.lowering.tiles import Tuning
from qpack_packager.cuda.targets import COMMON
from qpack_packager.prepare import Prepared, prepare
from qpack_packager.serving import Options
from qpack_schemas.errors import UnsupportedError
from qpack_schemas.launch_rules import check_table
from qpack_schemas.launch_table import Scalar
from qpack_schemas.manifest import Kernel
from qpack_schemas.program import KINDS, Buffer, Kind
from weight_forms import Change, Programs, as_int8, changed, with_zeros

FAMILIES = ("qwen2", "qwen3", "qwen3_5")
PUBLISHED_LAYERS = {"qwen2": 24, "qwen3": 28, "qwen3_5": 24}  # Qwen2.5-0.5B, Qwen3-0.6B, Qwen3.5-0.8B


def prepared(model: Path, **options: Any) -> Prepared:
    return prepare(ModelText(model), Options(**{"targets": ("cuda:sm_89",), **options}))


def published(family: str, tmp_path: Path, **options: Any) -> Prepared:
    layers = PUBLISHED_LAYERS[family]
    return prepared(write_headers(tmp_path / family, family, num_hidden_layers=layers), **options)


def in_form(plan: Prepared, change: Change) -> tuple[Programs, dict[str, Buffer], list[LoweredTarget]]:
    """The plan's programs with layers of another form, and what its targets make of them."""
    programs, shared = changed(plan.lowered.programs, shared_of(plan.lowered), change)
    return programs, shared, [lower_target(programs, shared, one.target, Tuning()) for one in plan.targets]


def kernel_entries(target: LoweredTarget) -> dict[str, Kernel]:
    """What the compiler would add, made up."""
    return {
        name: {
            "file": "", "sha256": "", "function": spec.function, "block": 32 * spec.warps, "shared_bytes": 0,
            "registers": 0, "spills": 0, "params": [list(pair) for pair in spec.types], "constants": {},
        }
        for name, spec in target.specs.items()
    }  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_published_model_takes_at_most_ten_launches_a_layer_and_nine_a_delta_layer(family: str, tmp_path: Path):
    plan = published(family, tmp_path)
    code, table = plan.lowered.programs["decode"].code, plan.targets[0].tables["decode"]
    layers = Counter[int]()
    for launch in table.launches:
        names = [name for i in code[launch.code[0] : launch.code[1] + 1] for name in i.outputs.values()]
        if (layer := names[0].partition(".")[0]).isdigit():
            layers[int(layer)] += 1
    kinds = plan.checkpoint.config.layers
    for layer, kind in enumerate(kinds):
        # A layer's input norm bears its name, the one behind the last layer doesn't; the first is part of the begin.
        assert layers[layer] + (layer == 0) <= (10 if kind == "full_attention" else 9)
    per_layer = sum(10 if kind == "full_attention" else 9 for kind in kinds)
    assert len(table.launches) <= per_layer + 1 + 3  # begin; head, and two to sample


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("dtype", "head", "embedding"),
    [
        ("bfloat16", "int8", "int8"),
        ("float16", "int4", "bf16"),
        ("float32", "bf16", "int8"),
        ("float32", "int4", "int8"),
    ],
)
def test_the_contract_finds_nothing_wrong_with_a_table(
    family: str, dtype: str, head: str, embedding: str, tmp_path: Path
):
    options: dict[str, Any] = {"dtype": dtype, "lm_head": head, "embedding": embedding}
    plan = prepared(random_checkpoint(tmp_path / "model", family), contexts=(64, 200), slots=9, **options)
    shared = shared_of(plan.lowered)
    for target in plan.targets:
        for kind in KINDS:
            program, table = plan.lowered.programs[kind], target.tables[kind]
            assert check_table(table, program, shared, kernel_entries(target), plan.serving.buckets, "t") == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("change", [with_zeros, as_int8])
def test_the_contract_finds_nothing_wrong_with_layers_of_another_form(family: str, change: Change, tmp_path: Path):
    plan = prepared(random_checkpoint(tmp_path / "model", family), contexts=(64, 200), slots=9, targets=("cuda",))
    programs, shared, targets = in_form(plan, change)
    for target in targets:
        for kind in KINDS:
            table = target.tables[kind]
            assert check_table(table, programs[kind], shared, kernel_entries(target), plan.serving.buckets, "t") == []


def test_zero_points_change_the_kernels_of_their_layers_and_nothing_else(tmp_path: Path):
    plan = published("qwen3_5", tmp_path)
    programs, shared, (target, *_) = in_form(plan, with_zeros)
    for kind in KINDS:
        usual, launches = plan.targets[0].tables[kind].launches, target.tables[kind].launches
        assert target.tables[kind].work == plan.targets[0].tables[kind].work
        seen = 0
        for before, after in zip(usual, launches, strict=True):
            instruction = programs[kind].code[after.code[0]]
            if "zero" not in instruction.inputs:
                assert after == before
                continue
            spec, seen = target.specs[after.kernel], seen + 1
            assert spec.types[2:4] == (("scale", "*fp16"), ("zero", "*i8"))
            assert after.args[:4] == tuple(instruction.inputs[name] for name in ("x", "q", "scale", "zero"))
            assert shared[instruction.inputs["zero"]].shape == shared[instruction.inputs["scale"]].shape
        assert seen > 4 * PUBLISHED_LAYERS["qwen3_5"] - 1


@pytest.mark.parametrize("kind", KINDS)
def test_int8_layers_leave_whole_values_with_their_bias_added(kind: Kind, tmp_path: Path):
    """As dense layers do: nobody reads planes, and nobody else adds a bias."""
    programs, _, (target, *_) = in_form(published("qwen2", tmp_path), as_int8)
    program, table = programs[kind], target.tables[kind]
    layers = [one for one in table.launches if program.code[one.code[0]].inputs.get("q", "").endswith("int8.q")]
    assert len(layers) == 4 * PUBLISHED_LAYERS["qwen2"]
    biases: set[str] = set()
    for launch in layers:
        instruction, spec = program.code[launch.code[0]], target.specs[launch.kernel]
        tile = 32 if kind == "prefill" else 8
        assert spec.function == "linear.linear_int8"
        assert dict(spec.constants)["TILE_M"] == tile
        assert launch.grid[1] == f"R/{tile}"
        y = instruction.outputs["y"]
        assert (table.work[y].dtype, table.work[y].shape) == (program.activation, program.buffers[y].shape)
        if bias := instruction.inputs.get("bias"):
            assert bias in launch.args
            biases.add(bias)
    others = [one for one in table.launches if one not in layers]
    assert len(biases) == PUBLISHED_LAYERS["qwen2"]
    assert not any(biases & {str(arg) for arg in launch.args} for launch in others)
    assert all(dict(target.specs[one.kernel].constants).get("PLANES", 0) == 0 for one in others)


@pytest.mark.parametrize("family", FAMILIES)
def test_which_buckets_there_are_changes_no_kernel_and_no_launch(family: str, tmp_path: Path):
    """One tile, one split and one cubin for all: what a row gets cannot depend on the bucket."""
    model = random_checkpoint(tmp_path / "model", family)
    few, many = (
        prepared(model, batches=batches, prefills=prefills, contexts=contexts, slots=8)
        for batches, prefills, contexts in (((1,), (16,), (512,)), ((1, 3, 8), (1, 64, 256), (64, 200, 512)))
    )
    for a, b in zip(few.targets, many.targets, strict=True):
        assert a.specs == b.specs
        assert a.tables == b.tables


@pytest.mark.parametrize("head", ["int4", "int8", "bf16"])
def test_every_form_of_head_is_one_launch_that_writes_the_logits(head: str, tmp_path: Path):
    plan = published("qwen3", tmp_path, lm_head=head, targets=("cuda",))
    function = {"int4": "linear_int4.linear_int4_decode", "int8": "linear.linear_int8", "bf16": "linear.linear"}[head]
    for target in plan.targets:
        for kind in KINDS:
            launches = [one for one in target.tables[kind].launches if "logits" in one.args]
            spec = target.specs[launches[0].kernel]
            assert (spec.function, dict(spec.types)["y"]) == (function, "*fp32")
            assert dict(spec.constants).get("PLANES", 1) == 1
            assert "logits" not in target.tables[kind].work
            assert (Scalar("R") in launches[0].args) == (kind == "decode")
            if kind == "prefill":
                assert launches[0].grid[1:] == (1, 1)  # one row, whatever the bucket


def test_only_tiles_differ_between_architectures(tmp_path: Path):
    plan = published("qwen3", tmp_path, targets=("cuda",))
    tables = {target.target.sm: target.tables for target in plan.targets if target.target.format == "cubin"}
    assert set(tables) == set(COMMON)
    functions = {sm: [(launch.code, launch.args) for launch in both["decode"].launches] for sm, both in tables.items()}
    assert len({str(launches) for launches in functions.values()}) == 1
    assert len({str(both["decode"].launches) for both in tables.values()}) > 1


def test_targets_are_followed_by_the_ptx_that_newer_gpus_can_run(tmp_path: Path):
    plan = published("qwen3", tmp_path, targets=("cpu", "cuda:sm_120", "cuda:sm_89"))
    assert [target.target.name for target in plan.targets] == ["cuda:sm_89", "cuda:sm_120", "cuda:ptx_120"]
    assert published("qwen2", tmp_path, targets=("cpu",)).targets == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_work_buffer_that_outlives_its_launch_is_the_programs_or_scratch(kind: Kind):
    plan = prepared(ASSETS / "tiny-qwen3_5")
    program, table = plan.lowered.programs[kind], plan.targets[0].tables[kind]
    own = {name for name, buffer in program.buffers.items() if buffer.arena == "work"}
    scratch = {name for name in table.work if "~" in name}
    assert set(table.work) - scratch <= own
    elided = own - set(table.work)
    expected = {"decode": {"tokens", "0.delta.u"}, "prefill": set()}[kind]
    assert expected <= elided
    if kind == "prefill":
        assert elided == set()


def test_a_head_of_an_odd_size_is_refused_by_name(tmp_path: Path):
    model = random_checkpoint(tmp_path / "model", "qwen3", head_dim=48)
    assert prepared(model, targets=("cpu",)).targets == ()
    with pytest.raises(UnsupportedError, match=r"head_dim of 48, the kernels of cuda:sm_89 need a power of two"):
        prepared(model)
