"""Bundles whose layers, heads and embeddings are stored in every way, and their exports, made once each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bundles import ASSETS, SMALL, build_bundle
from checkpoints import published_form, random_checkpoint
from qpack_packager.export.export import FormatName
from qpack_packager.serving import Options

from .exports import exported


@dataclass(frozen=True)
class Case:
    checkpoint: Callable[[Path], Path]
    options: Options


TINY_QWEN3, TINY_QWEN3_5 = ASSETS / "tiny-qwen3", ASSETS / "tiny-qwen3_5"
EIGHT_BITS = (("*.o_proj.weight", "int8"), ("*.layers.1.mlp.down_proj.weight", "bf16"))
CASES = {
    "tied, int8 both": Case(lambda folder: TINY_QWEN3, SMALL),
    "tied, dense both": Case(lambda folder: TINY_QWEN3, replace(SMALL, lm_head="bf16", embedding="bf16")),
    "int4 head, dense embedding": Case(lambda folder: TINY_QWEN3_5, replace(SMALL, lm_head="int4", embedding="bf16")),
    "multimodal": Case(lambda folder: published_form(TINY_QWEN3_5, folder), replace(SMALL, lm_head="bf16")),
    "biases, untied": Case(lambda folder: random_checkpoint(folder, "qwen2", tied=False, initializer_range=0.1), SMALL),
    "odd heads": Case(
        lambda folder: random_checkpoint(
            folder, "qwen3_5", tied=False, head_dim=48, num_attention_heads=8, vocab_size=600,
            linear_conv_kernel_dim=3, attention_bias=True, initializer_range=0.1,
        ),
        replace(SMALL, lm_head="int4"),
    ),
    "int8 and dense layers": Case(lambda folder: TINY_QWEN3, replace(SMALL, rules=EIGHT_BITS)),
}  # fmt: skip


@dataclass(frozen=True)
class Built:
    checkpoint: Path
    bundle: Path
    folder: Path

    def export(self, format_name: FormatName) -> Path:
        output = self.folder / format_name
        return output if output.exists() else exported(self.bundle, output, format_name)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """built("multimodal"): checkpoint, bundle and exports of one of CASES. Only for reading."""
    made: dict[str, Built] = {}

    def get(name: str) -> Built:
        if name not in made:
            case, folder = CASES[name], tmp_path_factory.mktemp("export")
            checkpoint = case.checkpoint(folder / "checkpoint")
            made[name] = Built(checkpoint, build_bundle(checkpoint, folder / "bundle", case.options), folder)
        return made[name]

    return get
