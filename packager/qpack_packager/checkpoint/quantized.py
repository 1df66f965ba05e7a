"""Tensors of a checkpoint as its model sees them; those of a quantized one are stored in several parts each."""

from collections.abc import Mapping

from qpack_packager.checkpoint.json_object import JsonObject
from qpack_packager.checkpoint.source_tensor import FLOATS, SourceTensor, Tensor
from qpack_schemas.errors import UnsupportedError


def assemble(raw: Mapping[str, SourceTensor], config: JsonObject) -> dict[str, Tensor]:
    """Tensors by canonical name, sorted. Raises UnsupportedError for what no known format explains."""
    for tensor in raw.values():
        if tensor.dtype not in FLOATS:
            raise UnsupportedError(
                f"tensor {tensor.source_name!r} is {tensor.dtype}, weights must be one of {', '.join(FLOATS)}",
                where=str(tensor.path),
                remedy="if this checkpoint is quantized already, start from the unquantized one",
            )
    return dict(raw)
