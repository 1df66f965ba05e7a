"""The bytes of a step, against a count by hand from the configs of both trained models."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bundles import ASSETS, SMALL, build_bundle
from qpack_runtime.bench.cases import Case, bytes_of
from qpack_runtime.boot import Booted, boot

BF16, F32 = 2, 4
H, M, V = 128, 384, 512  # hidden, MLP, vocabulary
HEADS, KV, D = 4, 2, 32  # attention; of Qwen3.5's delta layers: value heads, key heads, both dimensions
TAPS, CHANNELS = 4, 2 * KV * D + HEADS * D  # of the convolution over query, key and value
MEMORY = HEADS * D * D * F32  # recurrent memory of a layer and sequence
KEY = KV * D * BF16  # of a layer and position; a value is as large


def int4(n: int, k: int) -> int:
    """Codes, and a bfloat16 scale for every 128 of them."""
    return n * k // 2 + n * k // 128 * BF16


MLP = int4(2 * M, H) + int4(H, M) + 2 * H * BF16  # and the norms before mixer and MLP
ATTENTION = int4(H, HEADS * D) + 2 * D * BF16
DELTA = (
    int4(CHANNELS + HEADS * D, H) + int4(H, HEADS * D) + 2 * HEADS * H * BF16 + CHANNELS * TAPS * BF16
    + 2 * HEADS * F32 + D * BF16
)  # fmt: skip
ENDS = H * BF16 + V * H * BF16  # last norm, and the head, which is the embedding too

# Of both models: the weights that every step reads whole, the bytes of a line of the rope table, the number of
# attention layers and of delta layers.
QWEN3 = (4 * (MLP + ATTENTION + int4((HEADS + 2 * KV) * D, H)) + ENDS, D * F32, 4, 0)
QWEN3_5 = (4 * MLP + 3 * DELTA + ATTENTION + int4((2 * HEADS + 2 * KV) * D, H) + ENDS, D // 4 * F32, 1, 3)


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Booted]:
    """By name, with head and embedding as the checkpoint has them. Prompts are cut into chunks of 64."""
    made: dict[str, Booted] = {}

    def get(name: str) -> Booted:
        if name not in made:
            options = replace(SMALL, lm_head="bf16", embedding="bf16")
            made[name] = boot(build_bundle(ASSETS / name, tmp_path_factory.mktemp("bench") / name, options))
        return made[name]

    return get


@pytest.mark.parametrize(("name", "facts"), [("tiny-qwen3", QWEN3), ("tiny-qwen3_5", QWEN3_5)])
@pytest.mark.parametrize(("batch", "context"), [(1, 1), (1, 63), (3, 64), (4, 127)])
def test_a_decode_step_moves_weights_once_and_the_state_of_every_sequence(
    booted: Callable[[str], Booted], name: str, facts: tuple[int, ...], batch: int, context: int
):
    weights, rope, attention, delta = facts
    positions = context + 1  # that of the new token is read with the others, after it is written
    keys = attention * 2 * KEY * (positions + 1)
    state = delta * (2 * MEMORY + CHANNELS * TAPS * BF16)  # memory read and written; a column written, the others read
    expected = weights + batch * (rope + keys + state)
    model = booted(name)
    assert bytes_of(Case("decode", batch, context), model.bundle, model.engine) == expected


@pytest.mark.parametrize(("name", "facts"), [("tiny-qwen3", QWEN3), ("tiny-qwen3_5", QWEN3_5)])
@pytest.mark.parametrize("chunks", [[1], [3], [64], [64, 1], [64, 63]])
def test_a_prompt_reads_the_weights_and_the_cache_once_a_chunk(
    booted: Callable[[str], Booted], name: str, facts: tuple[int, ...], chunks: Sequence[int]
):
    weights, rope, attention, delta = facts
    expected = end = 0
    for number, rows in enumerate(chunks):
        end += rows
        keys = attention * 2 * KEY * (end + rows)
        columns = min(rows, TAPS) + (TAPS - 1) * (number > 0)
        state = delta * ((1 + (number > 0)) * MEMORY + CHANNELS * columns * BF16)
        expected += weights + rows * rope + keys + state
    model = booted(name)
    assert bytes_of(Case("prefill", 1, end), model.bundle, model.engine) == expected


def test_an_embedding_that_is_no_head_is_read_by_the_line(tmp_path: Path):
    """The int8 head is a tensor of its own then: codes, and scales for every 128."""
    options = replace(SMALL, lm_head="int8", embedding="bf16")
    model = boot(build_bundle(ASSETS / "tiny-qwen3_5", tmp_path / "bundle", options))
    weights, rope, attention, delta = QWEN3_5
    weights += V * H + V * H // 128 * BF16 - V * H * BF16
    per_sequence = H * BF16 + rope + attention * 2 * KEY * 34 + delta * (2 * MEMORY + CHANNELS * TAPS * BF16)
    assert bytes_of(Case("decode", 4, 32), model.bundle, model.engine) == weights + 4 * per_sequence
