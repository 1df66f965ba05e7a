"""Models whose executors are compared, with transformers and with each other. Between them they have every family, head
and embedding tied and not and in every form, and sizes that are odd on purpose: padding of K and N, several value heads
per key head, biases, another width of the convolution."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bundles import ASSETS, build_bundle
from checkpoints import published_form, random_checkpoint
from qpack_packager.serving import Options


@dataclass(frozen=True)
class Model:
    """How to make its checkpoint in a folder, and `--lm-head`, `--embedding` and `--module` of its bundle."""

    checkpoint: Callable[[Path], Path]
    lm_head: str
    embedding: str
    rules: tuple[tuple[str, str], ...] = ()  # of weights of layers


MODELS = {
    "trained qwen3": Model(lambda folder: ASSETS / "tiny-qwen3", "int8", "int8"),
    "trained qwen3_5": Model(lambda folder: ASSETS / "tiny-qwen3_5", "int4", "bf16"),
    "published qwen3_5": Model(lambda folder: published_form(ASSETS / "tiny-qwen3_5", folder), "bf16", "bf16"),
    "random qwen2": Model(
        lambda folder: random_checkpoint(
            folder, "qwen2", tied=False, hidden_size=192, intermediate_size=200, num_attention_heads=6, vocab_size=520,
            initializer_range=0.1,
        ),
        "int8", "int8", (("*.1.self_attn.[qkv]_proj.weight", "int8"), ("*.down_proj.weight", "bf16")),
    ),
    "random qwen3 with biases": Model(
        lambda folder: random_checkpoint(folder, "qwen3", attention_bias=True, head_dim=48, initializer_range=0.1),
        "bf16", "int8",
    ),
    "random qwen3_5": Model(
        lambda folder: random_checkpoint(
            folder, "qwen3_5", tied=False, hidden_size=160, vocab_size=600, linear_num_key_heads=1,
            linear_conv_kernel_dim=3, attention_bias=True, initializer_range=0.1,
        ),
        "int4", "int8", (("*.in_proj_*.weight", "int8"), ("*.self_attn.*", "int8"), ("*.0.mlp.*", "bf16")),
    ),
}  # fmt: skip


def build_model(name: str, folder: Path, options: Options) -> tuple[Path, Path]:
    """Checkpoint and bundle of one of MODELS."""
    model = MODELS[name]
    checkpoint = model.checkpoint(folder / "model")
    options = replace(options, lm_head=model.lm_head, embedding=model.embedding, rules=model.rules)
    return checkpoint, build_bundle(checkpoint, folder / "bundle", options)
