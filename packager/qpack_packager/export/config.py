"""config.json of an exported checkpoint: the bundle's own, of the text model alone, and what is quantized how."""

from collections.abc import Mapping

from qpack_packager.checkpoint.checkpoint import CONFIG
from qpack_packager.checkpoint.family import ARCHITECTURES
from qpack_schemas.bundle import Bundle
from qpack_schemas.strict_json import JsonValue, load_strict

_DTYPE_KEYS = ("dtype", "torch_dtype")  # the newer and the older name
_SOURCE_QUANTIZATION = ("quantization_config", "compression_config")  # of the checkpoint that was imported


def export_config(bundle: Bundle, *, dtype: str, tied: bool, quantization: Mapping[str, JsonValue]) -> JsonValue:
    """`dtype` is that of the scales, which engines read in the model's dtype; `tied`: the head is the embedding."""
    config: dict[str, JsonValue] = dict(load_strict(bundle.path / "model" / CONFIG))
    if "text_config" in config:
        version = {key: config[key] for key in ("transformers_version",) if key in config}
        config = {**config["text_config"], **version}
    family = bundle.manifest["model"]["family"]
    if family == "qwen3_5":
        config["model_type"] = "qwen3_5_text"
    config = {key: value for key, value in config.items() if key not in _SOURCE_QUANTIZATION and key[:4] != "mtp_"}
    config |= dict.fromkeys([key for key in _DTYPE_KEYS if key in config] or _DTYPE_KEYS[:1], dtype)
    config["architectures"] = [ARCHITECTURES[family][0]]  # the text model's comes first
    return {**config, "tie_word_embeddings": tied, "quantization_config": dict(quantization)}
