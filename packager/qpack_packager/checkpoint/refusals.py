"""Settings of a config.json that would change the result and that qpack does not implement: refused, never ignored."""

from qpack_packager.checkpoint.json_object import JsonObject, shown
from qpack_schemas.errors import UnsupportedError
from qpack_schemas.strict_json import JsonValue

# Any value but null, false and {} is refused.
_ABSENT = {
    "auto_map": ("the model brings its own Python code (trust_remote_code)", "use a model that needs none"),
    "per_layer_config": ("sizes that differ from layer to layer are not supported", ""),
}
# Only this value is implemented, which is also the default.
_FIXED = {"hidden_act": "silu", "attn_output_gate": True, "is_causal": True}


def refuse_unsupported(level: JsonObject) -> None:
    """Raises UnsupportedError naming the first field of this level that cannot be honoured, and its value."""
    for field, (reason, remedy) in _ABSENT.items():
        if value := level.value.get(field):
            _refuse(level, field, value, reason, remedy)
    for field, implemented in _FIXED.items():
        value = level.value.get(field)
        if value is not None and value != implemented:
            _refuse(level, field, value, f"only {shown(implemented)} is implemented")


def refuse_sliding_window(text: JsonObject, layers: int) -> None:
    """As in transformers, `use_sliding_window` gives layers from `max_window_layers` on a window, unless that is null.
    Refused even where `layer_types` says otherwise: then it is not clear what is meant."""
    window = text.value.get("sliding_window", 4096)
    first = text.integer("max_window_layers", 28, minimum=0)
    if text.flag("use_sliding_window") and window is not None and first < layers:
        _refuse(text, "sliding_window", window, "sliding windows are not supported", "use a model without one")


def _refuse(level: JsonObject, field: str, value: JsonValue, reason: str, remedy: str = "") -> None:
    raise UnsupportedError(f"{field} is {shown(value)}: {reason}", where=level.at(field), remedy=remedy)
