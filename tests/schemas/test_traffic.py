"""What a step moves: instruction by instruction, against the shapes that the configuration gives."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundles import ASSETS, stored_weights
from checkpoints import read_config
from qpack_schemas.bundle import open_bundle
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.traffic import decode_traffic, decode_traffic_by_instruction

NAMES = ["tiny-qwen3", "tiny-qwen3_5"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("rows", "positions"), [(1, 1), (1, 64), (4, 128)])
def test_what_instructions_move_adds_up_to_the_step(
    name: str, rows: int, positions: int, tiny_bundle: Callable[[str], Path]
):
    bundle = open_bundle(tiny_bundle(name), digests=False)
    program, shared = bundle.programs["decode"], shared_buffers(bundle.manifest)
    each, step = (f(program, shared, rows, positions) for f in (decode_traffic_by_instruction, decode_traffic))
    assert isinstance(each, list)
    assert len(each) == len(program.code)
    assert {(part.rows, part.positions) for part in each} == {(rows, positions)}
    for field in ("weights", "kv", "recurrent", "total"):
        assert sum(getattr(part, field) for part in each) == getattr(step, field)


def moved(bundle: Path, rows: int, positions: int) -> dict[str, Counter[str]]:
    """Operation -> bytes by kind, in a step of the bundle."""
    opened = open_bundle(bundle, digests=False)
    program, held = opened.programs["decode"], dict[str, Counter[str]]()
    each = decode_traffic_by_instruction(program, shared_buffers(opened.manifest), rows, positions)
    for instruction, part in zip(program.code, each, strict=True):
        fields = {"weights": part.weights, "kv": part.kv, "recurrent": part.recurrent}
        held.setdefault(instruction.op, Counter()).update(fields)
    return held


@pytest.mark.parametrize("name", NAMES)
def test_each_operation_moves_what_it_reads_and_writes(name: str, tiny_bundle: Callable[[str], Path]):
    """bfloat16, 2 bytes: keys and values of 100 positions read, those of one written; the recurrent state, float32, and
    the columns of the convolution but the oldest, read and written."""
    rows, positions, config = 4, 100, read_config(ASSETS / name)
    held, bundle = moved(tiny_bundle(name), rows, positions), tiny_bundle(name)
    layers = json.loads((bundle / "manifest.json").read_bytes())["model"]["layers"]
    attention = layers.count("full_attention")
    position = 2 * config["num_key_value_heads"] * config["head_dim"] * 2
    assert held["attention"] == {"weights": 0, "kv": rows * positions * position * attention, "recurrent": 0}
    assert held["rope_kv_write"]["kv"] == rows * position * attention

    stored = stored_weights(bundle)
    sizes = {tensor: value.nbytes for tensor, value in stored.items()}
    # The table has a line per position, which all layers read alike; the norms of queries and keys are each layer's.
    norms = sum(size for tensor, size in sizes.items() if tensor.endswith(("q_norm", "k_norm")))
    assert held["rope_kv_write"]["weights"] == rows * sizes["rope"] // len(stored["rope"]) + norms
    int4 = [name for name, value in stored.items() if name.endswith(".q") and name != "embed.q" and value.ndim == 2]
    assert held["linear_int4"]["weights"] == sum(sizes[q] + sizes[q.removesuffix("q") + "scale"] for q in int4)
    assert held["linear_int8"]["weights"] == sizes["embed.q"] + sizes["embed.scale"]  # tied: counted where it is whole
    assert held["embed_int8"] == {"weights": 0, "kv": 0, "recurrent": 0}
    assert held["silu_mul"].total() == held["sample"].total() == 0
    if name == "tiny-qwen3_5":
        assert_delta(held, config, rows, layers.count("linear_attention"))


def assert_delta(held: dict[str, Counter[str]], config: dict[str, Any], rows: int, layers: int) -> None:
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    channels = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + values
    state = values * config["linear_key_head_dim"] * 4
    assert held["gated_delta"]["recurrent"] == rows * layers * 2 * state
    assert held["causal_conv1d"]["recurrent"] == rows * layers * config["linear_conv_kernel_dim"] * channels * 2
