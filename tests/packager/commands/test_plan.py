"""`qpack plan` against bundles that are built, the sizes of published models, and the roofline formula."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundles import ASSETS, SMALL, stored_weights
from checkpoints import random_checkpoint
from qpack_packager.build import build
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.commands.plan import report
from qpack_packager.prepare import prepare
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from qpack_packager.weights import shards

from .headers import write_headers

MORE = Options(batches=(1, 2, 3), contexts=(48,), prefills=(5,), slots=7, dtype="float32")


def planned(model: Path, options: Options = SMALL) -> dict[str, Any]:
    return json.loads(report(prepare(ModelText(model), options), "json"))


def read_manifest(bundle: Path) -> dict[str, Any]:
    return json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3_5"])
def test_the_plan_is_what_build_makes_to_the_byte(name: str, tiny_bundle: Callable[[str], Path]):
    plan, bundle = planned(ASSETS / name), tiny_bundle(name)
    manifest = read_manifest(bundle)
    for field in ("memory", "model", "slots", "context", "buckets"):
        assert plan[field] == manifest[field], field
    for field, value in plan["quant"].items():
        assert value == manifest["quant"][field], field
    assert plan["weight_files"] == {f"weights/{p.name}": p.stat().st_size for p in (bundle / "weights").iterdir()}


@pytest.mark.parametrize(("family", "tied"), [("qwen2", False), ("qwen3", True), ("qwen3_5", False)])
def test_so_it_is_for_every_family_other_options_and_many_shards(
    family: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shards, "SHARD_BYTES", 100_000)
    model, bundle = random_checkpoint(tmp_path / "model", family, tied=tied), tmp_path / "bundle"
    build(ModelText(model), bundle, MORE, Progress("plain"))
    plan = planned(model, MORE)
    assert plan["memory"] == read_manifest(bundle)["memory"]
    assert plan["weight_files"] == {f"weights/{p.name}": p.stat().st_size for p in (bundle / "weights").iterdir()}
    assert len(plan["weight_files"]) > 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_parts_of_an_arena_are_the_arena(dtype: str):
    plan = planned(ASSETS / "tiny-qwen3_5", Options(dtype=dtype))
    arenas = {arena: sum(parts.values()) for arena, parts in plan["memory_parts"].items()}
    memory = plan["memory"]
    assert arenas == {
        "weights": memory["weights_bytes"],
        "state": memory["state_bytes"],
        "io": memory["io_bytes"],
        "work": max(memory["work_bytes"].values()),
    }
    assert sum(arenas.values()) == memory["minimum_device_bytes"]
    assert "other" not in plan["memory_parts"]["state"]


# Sizes of the text models of Qwen2.5-0.5B, Qwen3-0.6B and Qwen3.5-0.8B, from their config.json: bytes of keys and
# values per position, 2 * layers * kv_heads * head_dim * 2; recurrent state per sequence, layers * heads * 128 * 128 in
# float32; weights of all linears but in_proj_a and in_proj_b; weights of the (tied) embedding.
PUBLISHED = [
    ("qwen2", 24, 12_288, 0, 357_826_560, 151_936 * 896),
    ("qwen3", 28, 114_688, 0, 440_401_920, 151_936 * 1024),
    ("qwen3_5", 24, 12_288, 18_874_368, 497_025_024, 248_320 * 1024),
]


@pytest.mark.parametrize(("model", "layers", "kv", "recurrent", "linear", "embedding"), PUBLISHED)
def test_a_model_of_published_size_is_planned_from_its_headers_alone(
    model: str, layers: int, kv: int, recurrent: int, linear: int, embedding: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(Checkpoint, "lines", lambda *_: pytest.fail("a weight was read"))
    plan = planned(write_headers(tmp_path / model, model, num_hidden_layers=layers), Options())
    parts = plan["memory_parts"]
    positions, seats = 8 * 2048 + 1, 8 + 1
    attention_layers = plan["model"]["layers"].count("full_attention")
    alignment = 256 * 2 * attention_layers
    assert positions * kv <= parts["state"]["KV cache"] < positions * kv + alignment
    assert parts["state"]["recurrent"] == seats * recurrent
    stored = embedding + embedding // 128 * 2  # 8 bits per weight and a 16-bit scale for each 128
    assert parts["weights"]["embedding and head"] == stored
    # 4 bits per weight and a 16-bit scale for each 128
    assert parts["weights"]["int4 codes and scales"] == linear // 2 + linear // 128 * 2
    assert plan["memory"]["weights_bytes"] == pytest.approx(linear * (1 / 2 + 2 / 128) + stored, rel=0.01)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("head", "embedding"), [("int8", "int8"), ("int4", "int8"), ("int4", "bf16"), ("bf16", "bf16")]
)
def test_a_decode_step_reads_every_weight_once_and_of_the_embedding_a_line_per_row(
    tied: bool, head: str, embedding: str, tmp_path: Path
):
    model, bundle = random_checkpoint(tmp_path / "model", "qwen3_5", tied=tied), tmp_path / "bundle"
    options = replace(SMALL, lm_head=head, embedding=embedding)
    build(ModelText(model), bundle, options, Progress("plain"))
    stored = stored_weights(bundle)
    size = {name: tensor.nbytes for name, tensor in stored.items()}
    lines = {n: size[n] // len(stored[n]) for n in stored if n.startswith("embed.") or n == "rope"}
    if tied and head == embedding:  # the head reads all of it anyway
        lines = {"rope": lines["rope"]}
    whole = sum(size.values()) - sum(size[name] for name in lines)
    steps = planned(model, options)["decode_steps"]
    assert [(step["rows"], step["weights"]) for step in steps] == [
        (rows, whole + rows * sum(lines.values())) for rows in (1, 4)
    ]


def _product(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def test_a_decode_step_moves_the_state_of_every_row():
    """Qwen3.5: two kv heads of 32, one attention layer; three layers of 4 recurrent 32 x 32 states and 256 channels."""
    one, four = planned(ASSETS / "tiny-qwen3_5")["decode_steps"]
    assert one["positions"] == four["positions"] == 64  # half of the largest context
    assert one["kv"] == 2 * 2 * 32 * 2 * (64 + 1)  # all read, the new one written
    assert one["recurrent"] == 3 * (2 * 4 * 32 * 32 * 4 + 256 * 4 * 2)
    assert (four["kv"], four["recurrent"]) == (4 * one["kv"], 4 * one["recurrent"])
    assert one["total"] == one["weights"] + one["kv"] + one["recurrent"]


def test_tokens_per_second_are_bandwidth_over_bytes():
    plan = planned(ASSETS / "tiny-qwen3")
    for device in plan["devices"]:
        for step in plan["decode_steps"]:
            seconds = step["total"] / device["bytes_per_second"]
            assert device["tokens_per_second"][str(step["rows"])] == pytest.approx(step["rows"] / seconds, rel=1e-3)
        assert "NVIDIA" in device["source"]


def test_a_device_that_is_too_small_is_shown_and_is_no_error():
    many = Options(batches=(1,), slots=60_000)
    plan = planned(ASSETS / "tiny-qwen3_5", many)
    needs = plan["memory"]["minimum_device_bytes"]
    fits = {device["name"]: device["fits"] for device in plan["devices"]}
    assert fits == {device["name"]: needs <= device["memory_bytes"] for device in plan["devices"]}
    assert set(fits.values()) == {True, False}
    lines = report(prepare(ModelText(ASSETS / "tiny-qwen3_5"), many), "text").splitlines()
    small = next(line for line in lines if "RTX 4060" in line)
    assert "too big" in small
    assert small.split()[-1] == "-"


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3_5"])
def test_the_text_fits_a_terminal_and_says_why_each_tensor_is_kept(name: str):
    prepared = prepare(ModelText(ASSETS / name), Options())
    text = report(prepared, "text")
    assert text.isascii()
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())
    flat = " ".join(text.split())
    for rule in json.loads(report(prepared, "json"))["quant"]["kept"]:
        assert rule["glob"] in flat
        assert rule["reason"] in flat
    assert f"with {json.loads(report(prepared, 'json'))['decode_launches']} launches" in flat


def test_expected_tokens_per_second_leave_time_between_launches():
    """1.3 us a launch, on top of bytes over bandwidth."""
    plan = planned(ASSETS / "tiny-qwen3")
    assert plan["decode_launches"] == 44  # ten a layer, one before them, the head, and two to sample
    for device in plan["devices"]:
        for step in plan["decode_steps"]:
            seconds = step["total"] / device["bytes_per_second"] + 44 * 1.3e-6
            rows = step["rows"]
            assert device["expected_tokens_per_second"][str(rows)] == pytest.approx(rows / seconds, rel=1e-3)


def test_a_model_without_cuda_kernels_is_planned_all_the_same_and_says_so(tmp_path: Path):
    model = random_checkpoint(tmp_path / "model", "qwen3", head_dim=48)
    plan = planned(model)
    assert plan["decode_launches"] is None
    assert any("qpack doctor" in note for note in plan["notes"])
    assert all(device["expected_tokens_per_second"] == {} for device in plan["devices"])
