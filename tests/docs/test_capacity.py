"""The figures of docs/capacity.md and docs/edge-hosts.md are those of `qpack plan` and of the device table."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packager.commands.headers import write_headers
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.commands.plan import report
from qpack_packager.cuda.targets import ARCHITECTURES
from qpack_packager.devices import DEVICES
from qpack_packager.prepare import prepare
from qpack_packager.serving import Options
from qpack_schemas.targets import LINUX_DRIVERS, TEGRA, architecture_number

from .pages import read_page

PAGE = read_page("capacity.md")
MODELS = {
    "Qwen3-0.6B": ("qwen3", {"num_hidden_layers": 28}),
    "Qwen3.5-0.8B": ("qwen3_5", {"num_hidden_layers": 24}),
    "Qwen3-4B": (
        "qwen3",
        {"num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32},
    ),
}
EXAMPLE = replace(Options(), batches=(1, 2, 4, 8), slots=8, contexts=(1024, 4096), prefills=(16, 64, 256, 512))
Plan = dict[str, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_headers(folder / name, family, **sizes) for name, (family, sizes) in MODELS.items()}


def planned(model: Path, options: Options) -> Plan:
    return json.loads(report(prepare(ModelText(model), options), "json"))


@pytest.fixture(scope="module")
def plans(models: dict[str, Path]) -> list[Plan]:
    return [planned(model, Options()) for model in models.values()]


def table(page: str, heading: str) -> dict[str, list[str]]:
    """First cell -> the others, of all tables below a heading."""
    lines = page.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {first: others for first, *others in rows}


def mb(number: float) -> str:
    return f"{number / 1e6:,.0f} MB"


def kv_bytes(plan: Plan) -> int:
    model = plan["model"]
    return 2 * model["layers"].count("full_attention") * model["kv_heads"] * model["head_dim"] * 2


def test_the_three_models_are_as_planned(plans: list[Plan]):
    rows = table(PAGE, "Three models, as planned")
    for row, figure in {
        "weights": lambda plan: mb(plan["memory"]["weights_bytes"]),
        "state": lambda plan: mb(plan["memory"]["state_bytes"]),
        "all": lambda plan: mb(plan["memory"]["minimum_device_bytes"]),
        "KV per position": lambda plan: f"{kv_bytes(plan):,} bytes",
        "a step of 1 row moves": lambda plan: mb(plan["decode_steps"][0]["total"]),
        "a step of 8 rows moves": lambda plan: mb(plan["decode_steps"][1]["total"]),
    }.items():
        assert rows[row] == [figure(plan) for plan in plans], row


def test_so_are_the_speeds(plans: list[Plan]):
    rows = table(PAGE, "Three models, as planned")
    named = [device for device in plans[0]["devices"] if device["name"] in rows]
    assert len(named) == 5
    for device in named:
        speeds = [
            f"{one['expected_tokens_per_second'][batch]:,.0f}"
            for plan in plans
            for one in plan["devices"]
            if one["name"] == device["name"]
            for batch in ("1", "8")
        ]
        assert rows[device["name"]] == [f"{device['bytes_per_second'] / 1e9:,.0f}", *speeds]


def test_the_worked_example_is_as_planned(models: dict[str, Path]):
    plan = planned(models["Qwen3-4B"], EXAMPLE)
    memory, step = plan["memory"], plan["decode_steps"][1]
    l4 = next(device for device in plan["devices"] if device["name"] == "L4")
    needs = memory["minimum_device_bytes"]
    seconds = step["total"] / 300e9
    rows = table(PAGE, "A worked example")
    assert rows["weights"] == [mb(memory["weights_bytes"])]
    assert rows[f"state: 8 x 4,096 positions x {kv_bytes(plan):,} bytes"] == [mb(memory["state_bytes"])]
    assert rows["io and work"] == [mb(memory["io_bytes"] + max(memory["work_bytes"].values()))]
    assert rows["all, of 24 GB"] == [f"{mb(needs)}, {100 * needs / 24e9:.1f} %"]
    assert rows["a step of 8 rows, each halfway"] == [mb(step["total"])]
    rate = f"{1000 * seconds:.1f} ms, so {8 / seconds:,.0f} tokens a second; {1 / seconds:.0f} for each user"
    assert rows["at 300 GB/s"] == [rate]
    launched = f"{l4['expected_tokens_per_second']['8']:,.0f} tokens a second"
    assert rows[f"with {plan['decode_launches']} launches"] == [launched]
    assert f"takes {100 * needs / 8e9:.0f} %" in PAGE
    # Three times the slots: every row has its own cache, and all share the weights.
    moved = step["weights"] + 24 * step["kv"] / 8
    assert f"{moved / 1e9:.1f} GB, which is {moved / 300e6:.0f} ms" in PAGE.replace("\n", " ")
    assert f"{300e9 / moved:.0f} tokens a second, and the host {24 * 300e9 / moved:.0f}" in PAGE.replace("\n", " ")
    assert f"{24 * memory['state_bytes'] / 8e9:.1f} GB" in PAGE


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_the_table_of_machines_has_each_device_with_its_target_and_driver(device: Any):
    number = architecture_number(device.architecture)
    rows = [
        row for row in read_page("edge-hosts.md").splitlines() if row.startswith("|") and f"cuda:sm_{number}`" in row
    ]
    memory, bandwidth = f"{device.memory_bytes / 1e9:.0f}", f"{device.bytes_per_second / 1e9:,.0f}"
    row = next(row for row in rows if all(re.search(rf"(?<![\d,]){one}(?!\d)", row) for one in (memory, bandwidth)))
    if number not in TEGRA:
        needed = ARCHITECTURES[number].min_driver
        assert str(min(linux for version, linux in LINUX_DRIVERS.items() if version >= needed)) in row
