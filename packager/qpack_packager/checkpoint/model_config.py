"""config.json -> the numbers that lowering needs. Defaults are those of transformers' configuration classes."""

from dataclasses import dataclass
from typing import Literal

from qpack_packager.checkpoint.family import read_family
from qpack_packager.checkpoint.json_object import JsonObject
from qpack_packager.checkpoint.refusals import refuse_sliding_window, refuse_unsupported
from qpack_packager.checkpoint.rope import read_rope
from qpack_schemas.errors import InputError, UnsupportedError
from qpack_schemas.strict_json import JsonValue

LayerType = Literal["full_attention", "linear_attention"]
Projection = Literal["q", "k", "v", "o"]

_HEAD_DIM = {"qwen3": 128, "qwen3_5": 256}  # where absent; Qwen2 divides the hidden size


@dataclass(frozen=True)
class DeltaConfig:
    """Sizes of the linear-attention layers (gated delta rule). With r = value_heads / key_heads, key head j serves the
    value heads j * r to j * r + r - 1."""

    key_heads: int
    value_heads: int
    key_dim: int  # per head
    value_dim: int  # per head
    conv_kernel: int  # taps of the causal convolution, the current row included


@dataclass(frozen=True)
class ModelConfig:
    """What a config.json says about the decoder."""

    family: str  # "qwen2", "qwen3" or "qwen3_5"
    architecture: str
    layers: tuple[LayerType, ...]
    hidden_size: int
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # of head_dim, from the front
    rope_theta: float
    rms_norm_eps: float
    vocab_size: int  # rows of the embedding, padding included
    max_context: int  # positions
    attention_bias: frozenset[Projection]
    declared_tied: tuple[tuple[str, bool], ...]  # (JSON pointer, value) of each tie_word_embeddings
    declared_dtype: str | None  # what the tensors hold is said by their own headers
    delta: DeltaConfig | None  # Qwen3.5 only


def read_model_config(document: JsonValue, where: str) -> ModelConfig:
    """`where` is the path of the config.json that `document` came from.

    Raises UnsupportedError naming field and value for what qpack does not implement, InputError for an absent key, a
    value of a wrong type and sizes that contradict each other.
    """
    top = JsonObject(document, where)
    text = top.object("text_config") or top
    levels = (top,) if text is top else (top, text)
    family, architecture = read_family(top, text)
    for level in levels:
        refuse_unsupported(level)

    hidden_size, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    kv_heads = heads if text.value.get("num_key_value_heads", 0) is None else text.integer("num_key_value_heads")
    _require_multiple(text, "num_attention_heads", heads, "num_key_value_heads", kv_heads)
    if family == "qwen2" and text.value.get("head_dim") is None:
        _require_multiple(text, "hidden_size", hidden_size, "num_attention_heads", heads)
    head_dim = text.integer("head_dim", _HEAD_DIM.get(family, hidden_size // heads))
    rotary_dim, rope_theta = read_rope(text, family, head_dim)
    return ModelConfig(
        family=family,
        architecture=architecture,
        layers=_layers(text, family),
        hidden_size=hidden_size,
        intermediate_size=text.integer("intermediate_size"),
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=rope_theta,
        rms_norm_eps=text.number("rms_norm_eps"),
        vocab_size=text.integer("vocab_size"),
        max_context=text.integer("max_position_embeddings"),
        attention_bias=_attention_bias(text, family),
        declared_tied=tuple(
            (level.pointer_to("tie_word_embeddings"), tied)
            for level in levels
            if (tied := level.flag("tie_word_embeddings")) is not None
        ),
        declared_dtype=next(
            (name for level in reversed(levels) for key in ("dtype", "torch_dtype") if (name := level.string(key))),
            None,
        ),
        delta=_delta(text) if family == "qwen3_5" else None,
    )


def _layers(text: JsonObject, family: str) -> tuple[LayerType, ...]:
    count = text.integer("num_hidden_layers")
    refuse_sliding_window(text, count)
    listed = text.strings("layer_types")
    if listed is None:  # every interval-th layer is a full-attention layer, and in Qwen2 and Qwen3 all are
        interval = text.integer("full_attention_interval", 4) if family == "qwen3_5" else 1
        listed = ["linear_attention" if i % interval else "full_attention" for i in range(1, count + 1)]
    elif len(listed) != count:
        raise InputError(
            f"layer_types has {len(listed)} entries, num_hidden_layers is {count}", where=text.at("layer_types")
        )
    layers: list[LayerType] = []
    for i, layer in enumerate(listed):
        if layer == "full_attention" or (layer == "linear_attention" and family == "qwen3_5"):
            layers.append(layer)
        else:
            raise UnsupportedError(
                f"layer type {layer!r} is not supported in {family}", where=text.at("layer_types", i)
            )
    return tuple(layers)


def _attention_bias(text: JsonObject, family: str) -> frozenset[Projection]:
    if family == "qwen2":  # no field says so
        return frozenset({"q", "k", "v"})
    return frozenset({"q", "k", "v", "o"}) if text.flag("attention_bias") else frozenset()


def _delta(text: JsonObject) -> DeltaConfig:
    delta = DeltaConfig(
        key_heads=text.integer("linear_num_key_heads"),
        value_heads=text.integer("linear_num_value_heads"),
        key_dim=text.integer("linear_key_head_dim"),
        value_dim=text.integer("linear_value_head_dim"),
        conv_kernel=text.integer("linear_conv_kernel_dim"),
    )
    _require_multiple(text, "linear_num_value_heads", delta.value_heads, "linear_num_key_heads", delta.key_heads)
    return delta


def _require_multiple(text: JsonObject, key: str, value: int, divisor_key: str, divisor: int) -> None:
    if value % divisor:
        raise InputError(f"{key} {value} is not a multiple of {divisor_key} {divisor}", where=text.at(key))
