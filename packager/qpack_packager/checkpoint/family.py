"""Which model a config.json describes; the families that are not supported are refused by name."""

from qpack_packager.checkpoint.json_object import JsonObject
from qpack_schemas.errors import UnsupportedError

FAMILIES = {"qwen2": "qwen2", "qwen3": "qwen3", "qwen3_5": "qwen3_5", "qwen3_5_text": "qwen3_5"}  # by model_type
ARCHITECTURES = {
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
}

# A word of the model type (they are joined by underscores) -> what it stands for.
_KINDS = {
    "omni": "a multimodal model",
    "vl": "a vision-language model",
    "audio": "an audio model",
    "asr": "an audio model",
    "moe": "a mixture of experts",
    "next": "Qwen3-Next, a mixture of experts",
    "qwen4": "Qwen3.8-Flash-Next, a multimodal mixture of experts",
}


def read_family(top: JsonObject, text: JsonObject) -> tuple[str, str]:
    """The family and the architecture. `text` is the level that holds the decoder's sizes, possibly `top` itself.

    Raises UnsupportedError for every other model, and for a Qwen without a language-model head.
    """
    family = _family(top, top.required_string("model_type"))
    inner = text.string("model_type")
    if inner is not None and _family(text, inner) != family:
        raise UnsupportedError(
            f"model type {inner!r} inside a {top.value['model_type']!r} is not supported", where=text.at("model_type")
        )
    known = ARCHITECTURES[family]
    architectures = top.strings("architectures") or [known[0] if text is top else known[-1]]
    if architectures[0] not in known:
        raise UnsupportedError(
            f"architecture {architectures[0]!r} is not supported",
            where=top.at("architectures"),
            remedy=f"of model type {top.value['model_type']!r}, qpack packages {' and '.join(known)}",
        )
    return family, architectures[0]


def _family(level: JsonObject, model_type: str) -> str:
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    kind = next((f" ({meaning})" for word, meaning in _KINDS.items() if word in model_type.split("_")), "")
    raise UnsupportedError(
        f"model type {model_type!r}{kind} is not supported",
        where=level.at("model_type"),
        remedy=f"qpack packages the dense text models of {', '.join(FAMILIES)}",
    )
