"""The rotary position embedding of a config.json in all its spellings.

The rules are those of transformers (modeling_rope_utils.py): a non-empty `rope_scaling` replaces `rope_parameters`,
and what it does not say is taken from the keys beside it. For text all three axes of Qwen3.5's multi-axis form are the
same position, so `mrope_*` changes nothing.
"""

from qpack_packager.checkpoint.json_object import JsonObject
from qpack_schemas.errors import InputError, UnsupportedError

DEFAULT_THETA = 10000.0


def read_rope(text: JsonObject, family: str, head_dim: int) -> tuple[int, float]:
    """(rotated dimensions, at the front of each head; base of the frequencies). Raises UnsupportedError if scaled,
    InputError for an odd number of dimensions."""
    rope = text.object("rope_scaling") or text.object("rope_parameters") or JsonObject({}, text.path, text.pointer)
    for key, value in rope.value.items():
        if isinstance(value, dict):
            raise UnsupportedError("rotary embeddings that differ by layer type are not supported", where=rope.at(key))
    key = "type" if rope.string("rope_type") is None else "rope_type"
    if (kind := rope.string(key)) not in (None, "default"):
        raise UnsupportedError(
            f"rope type {kind!r} is not supported, only 'default' is",
            where=rope.at(key),
            remedy="if the scaling was added to extend the context, remove it and restore max_position_embeddings",
        )
    theta = rope.number("rope_theta", text.number("rope_theta", DEFAULT_THETA))

    usual = 0.25 if family == "qwen3_5" else 1.0
    factor = rope.number("partial_rotary_factor", text.number("partial_rotary_factor", usual))
    where = (rope if "partial_rotary_factor" in rope.value else text).at("partial_rotary_factor")
    if factor > 1 or (factor < 1 and family != "qwen3_5"):  # transformers ignores it in Qwen2 and Qwen3, others do not
        raise UnsupportedError(f"partial_rotary_factor {factor} is not supported in {family}", where=where)
    rotary_dim = int(head_dim * factor)
    if rotary_dim < 2 or rotary_dim % 2:
        raise InputError(
            f"{factor} of head_dim {head_dim} rotates {rotary_dim} dimensions, which must be an even number above 0",
            where=text.at("head_dim"),
        )
    return rotary_dim, theta
