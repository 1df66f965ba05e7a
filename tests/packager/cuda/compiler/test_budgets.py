"""What the compiled code of published models must keep, on five architectures: no spills, few instructions a weight."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packager.commands.headers import write_headers
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.cuda.compiler.compile import compile_all
from qpack_packager.cuda.compiler.compiled import CompiledKernel
from qpack_packager.cuda.compiler.sass import MachineCode, read_machine_code
from qpack_packager.cuda.lowering.lower import LoweredTarget, lower_target, shared_of
from qpack_packager.cuda.lowering.tiles import Tuning
from qpack_packager.cuda.spec import KernelSpec
from qpack_packager.cuda.targets import Target
from qpack_packager.prepare import prepare
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from weight_forms import Change, as_int8, changed, with_zeros

FIVE = (80, 86, 89, 90, 120)
OTHERS = (75, 87, 100, 103, 110, 121)
BUDGET = {86: 3.0, 89: 3.0, 90: 3.0}  # instructions per weight at batch <= 8
GEMM = "linear_int4.linear_int4_decode"
HEAD = "linear.linear_int8"
HEAD_BUDGET = {"bfloat16": 4.0, "float16": 5.0}  # the bytes of a code cost four times what those of an int4 code do
ROWS = 8  # of a program of the decode product


def lowered(
    tmp_path: Path, family: str, targets: tuple[int, ...], dtype: str, **options: Any
) -> tuple[LoweredTarget, ...]:
    names = tuple(f"cuda:sm_{sm}" for sm in targets)
    model = write_headers(tmp_path / family, family)
    plans = prepare(ModelText(model), Options(targets=names, dtype=dtype, **options)).targets
    return tuple(plan for plan in plans if plan.target.format == "cubin")


def layers_of(
    tmp_path: Path, change: Change, targets: tuple[int, ...], dtype: str, family: str = "qwen3_5"
) -> tuple[LoweredTarget, ...]:
    """Kernels of the linears of a published model's layers in another form."""
    model = write_headers(tmp_path / family, family)
    prepared = prepare(ModelText(model), Options(targets=tuple(f"cuda:sm_{sm}" for sm in targets), dtype=dtype))
    programs, shared = changed(prepared.lowered.programs, shared_of(prepared.lowered), change)
    made: list[LoweredTarget] = []
    for plan in prepared.targets:
        if plan.target.format == "cubin":
            target = lower_target(programs, shared, plan.target, Tuning())
            new = {name: spec for name, spec in target.specs.items() if spec.function.startswith("linear")}
            made.append(replace(target, specs={name: spec for name, spec in new.items() if name not in plan.specs}))
    return tuple(made)


def compiled(plans: tuple[LoweredTarget, ...]) -> Mapping[Target, Mapping[str, CompiledKernel]]:
    """Through the user's cache. Spills are refused there."""
    return compile_all({plan.target: plan.specs.values() for plan in plans}, Progress("plain"))


def products(
    plans: tuple[LoweredTarget, ...], made: Mapping[Target, Mapping[str, CompiledKernel]], function: str = GEMM
) -> Iterator[tuple[KernelSpec, int, MachineCode]]:
    for plan in plans:
        for name, spec in plan.specs.items():
            if spec.function == function:
                yield spec, plan.target.sm, read_machine_code(made[plan.target][name].image)


@pytest.fixture(scope="module")
def qwen3_5(tmp_path_factory: pytest.TempPathFactory):
    """Every kernel of Qwen3.5-0.8B, decode and prefill, on five architectures."""
    plans = lowered(tmp_path_factory.mktemp("budgets"), "qwen3_5", FIVE, "bfloat16")
    return plans, compiled(plans)


def test_no_kernel_of_a_published_model_spills_on_any_of_five_architectures(qwen3_5):
    _, made = qwen3_5
    assert set(made) == {Target(sm) for sm in FIVE}
    for kernels in made.values():
        assert len(kernels) > 30
        assert all(kernel.spills == 0 for kernel in kernels.values())


def test_a_weight_costs_at_most_three_instructions_in_the_loop_of_the_decode_product(qwen3_5):
    seen = set()
    for spec, sm, code in products(*qwen3_5):
        if code.loop is None:  # one group a plane: nothing to repeat
            continue
        per_weight = code.loop.instructions_per_weight(ROWS)
        if sm in BUDGET:
            assert per_weight is not None, spec
            assert per_weight <= BUDGET[sm], (spec, sm)
            seen.add(sm)
    assert seen == set(BUDGET)


def test_the_decode_product_runs_on_tensor_cores_and_loads_128_bits_at_a_time(qwen3_5):
    for spec, sm, code in products(*qwen3_5):
        assert code.tensor > 0, (spec, sm)
        assert code.loads.get(128, 0) >= 8, (spec, sm)  # the words of a group


def test_the_int8_head_runs_on_tensor_cores_with_wide_loads_and_few_instructions_a_weight(qwen3_5):
    heads = list(products(*qwen3_5, function=HEAD))
    assert {sm for _, sm, _ in heads} == set(FIVE)
    for spec, sm, code in heads:
        assert code.tensor > 0, (spec, sm)
        assert code.loads.get(128, 0) >= 8, (spec, sm)
        assert code.loop is not None
        per_weight = code.loop.instructions_per_weight(ROWS)
        assert per_weight is not None
        assert per_weight <= HEAD_BUDGET["bfloat16"], (spec, sm)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_zero_points_neither_spill_nor_take_more_than_the_budget(dtype: str, tmp_path: Path):
    plans = layers_of(tmp_path, with_zeros, (80, 89), dtype)
    made = compiled(plans)
    assert all(dict(spec.types).get("zero") == "*i8" for plan in plans for spec in plan.specs.values())
    seen = set()
    for spec, sm, code in products(plans, made):
        assert code.tensor > 0, (spec, sm)
        assert code.loads.get(128, 0) >= 8, (spec, sm)
        if code.loop and sm in BUDGET:
            assert (code.loop.instructions_per_weight(ROWS) or 9) <= BUDGET[sm], (spec, sm)
            seen.add(sm)
    assert seen == {89}


def test_int8_layers_compile_for_few_rows_and_for_many(tmp_path: Path):
    plans = layers_of(tmp_path, as_int8, (80, 90), "bfloat16", "qwen2")  # with biases, and without
    compiled(plans)
    for plan in plans:
        assert {dict(spec.constants)["TILE_M"] for spec in plan.specs.values()} == {8, 32}
        assert {"bias" in dict(spec.types) for spec in plan.specs.values()} == {False, True}


@pytest.mark.parametrize(("head", "embedding"), [("int4", "bf16"), ("bf16", "int8")])
def test_no_other_form_of_head_or_embedding_spills(head: str, embedding: str, tmp_path: Path):
    plans = lowered(tmp_path, "qwen3_5", FIVE, "bfloat16", lm_head=head, embedding=embedding)
    made = compile_all({plan.target: list(ends(plan)) for plan in plans}, Progress("plain"))
    assert all(len(kernels) == 3 and not any(k.spills for k in kernels.values()) for kernels in made.values())


def ends(plan: LoweredTarget) -> Iterator[KernelSpec]:
    """What reads the embedding, and what writes the logits."""
    names = {launch.kernel for table in plan.tables.values() for launch in table.launches if "logits" in launch.args}
    for name, spec in plan.specs.items():
        if spec.function in ("rows.begin_decode", "rows.embed_norm") or (
            name in names and spec.function.startswith("linear")
        ):
            yield spec


def test_the_kernels_of_a_target_take_less_than_two_megabytes(qwen3_5):
    _, made = qwen3_5
    assert all(sum(len(kernel.image) for kernel in kernels.values()) < 2 << 20 for kernels in made.values())


def test_float32_is_never_rounded_on_its_way_into_a_product(tmp_path: Path):
    """TF32, which Triton takes by default, keeps 10 bits of the fraction. The interpreter can't show it."""
    model = write_headers(tmp_path / "model", "qwen3_5")
    products: dict[Target, dict[str, KernelSpec]] = {}
    for head in ("int8", "bf16"):
        options = Options(targets=("cuda:sm_89",), dtype="float32", lm_head=head)
        (plan,) = (plan for plan in prepare(ModelText(model), options).targets if plan.target.format == "ptx")
        products.setdefault(plan.target, {}).update(plan.specs)
    ((target, specs),) = products.items()
    chosen = [spec for spec in specs.values() if spec.function.startswith(("linear", "attention"))]
    assert {spec.function for spec in chosen} >= {GEMM, HEAD, "linear.linear", "attention.attention_split"}
    for name, kernel in compile_all({target: chosen}, Progress("plain"))[target].items():
        assert b"tf32" not in kernel.image, name


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_5"])
def test_every_family_compiles_without_spills_for_every_target(family: str, dtype: str, tmp_path: Path):
    plans = lowered(tmp_path, family, (*FIVE, *OTHERS), dtype)
    made = compiled(plans)
    assert all(kernel.spills == 0 for kernels in made.values() for kernel in kernels.values())
    for spec, sm, code in products(plans, made):
        if sm in BUDGET and code.loop and dtype != "float32":
            per_weight = code.loop.instructions_per_weight(ROWS)
            assert per_weight is not None
            assert per_weight <= BUDGET[sm], (spec, sm)
    for spec, sm, code in products(plans, made, HEAD):
        if sm in BUDGET and code.loop and dtype != "float32":
            assert (code.loop.instructions_per_weight(ROWS) or 9) <= HEAD_BUDGET[dtype], (spec, sm)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("change", [with_zeros, as_int8])
def test_every_form_of_layers_compiles_without_spills_for_every_target(change: Change, dtype: str, tmp_path: Path):
    plans = layers_of(tmp_path, change, (*FIVE, *OTHERS), dtype)
    made = compiled(plans)
    assert all(kernel.spills == 0 for kernels in made.values() for kernel in kernels.values())


LARGER: dict[str, tuple[str, dict[str, int]]] = {
    "Qwen2.5-1.5B": ("qwen2", {"hidden_size": 1536, "num_attention_heads": 12, "intermediate_size": 8960}),
    "Qwen2.5-7B": (
        "qwen2",
        {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944},
    ),
    "Qwen3-1.7B": ("qwen3", {"hidden_size": 2048, "intermediate_size": 6144}),
    "Qwen3-4B": ("qwen3", {"hidden_size": 2560, "num_attention_heads": 32, "intermediate_size": 9728}),
    "Qwen3-14B": ("qwen3", {"hidden_size": 5120, "num_attention_heads": 40, "intermediate_size": 17408}),
    "Qwen3.5-2B": ("qwen3_5", {"hidden_size": 2048, "intermediate_size": 6144}),
    "Qwen3.5-9B": (
        "qwen3_5",
        {
            "hidden_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 12288,
            "linear_num_value_heads": 32,
        },
    ),
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", LARGER)
def test_larger_models_compile_without_spills_for_the_common_targets(model: str, dtype: str, tmp_path: Path):
    family, sizes = LARGER[model]
    headers = write_headers(tmp_path / "model", family, num_hidden_layers=4, **sizes)
    plans = prepare(ModelText(headers), Options(targets=("cuda",), dtype=dtype)).targets
    made = compiled(tuple(plan for plan in plans if plan.target.format == "cubin"))
    assert all(kernel.spills == 0 for kernels in made.values() for kernel in kernels.values())
