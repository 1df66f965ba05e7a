"""Which tensors of a checkpoint are parts of a quantized weight, and in which format it is stored."""

from collections.abc import Mapping

from qpack_packager.checkpoint.packed import fp8
from qpack_packager.checkpoint.packed.scheme import READ
from qpack_packager.checkpoint.source_tensor import FLOATS, SourceTensor
from qpack_schemas.errors import InputError, UnsupportedError

Parts = Mapping[str, SourceTensor]  # of one weight, by the last part of their names

NEEDED = {
    "gptq": ("qweight", "qzeros", "scales"),
    "awq": ("qweight", "scales"),
    "compressed-tensors": ("weight_packed", "weight_scale", "weight_shape"),
    "fp8": ("weight",),
}  # by format
CODES = ("qweight", "weight_packed", "weight")  # of which each weight has one
MATRICES = {"qzeros", "scales", *CODES}
OPTIONAL = {"g_idx", "weight_zero_point", "weight_g_idx", *fp8.SCALES}
UNUSED = {"input_scale", "activation_scale"}  # of activations, which qpack does not round
CACHE = {f"{one}_{part}" for one in "qkv" for part in ("scale", "zero_point")}  # of a KV cache that others round
_KNOWN = {part for parts in NEEDED.values() for part in parts} - {"weight"} | OPTIONAL | UNUSED


def take_apart(raw: Mapping[str, SourceTensor]) -> tuple[dict[str, SourceTensor], dict[str, dict[str, SourceTensor]]]:
    """The tensors that are whole by themselves; and for the others, by the name before the last dot, their parts.
    Those of CACHE are left out: qpack's is not rounded. Raises UnsupportedError for a tensor that is neither."""
    whole, parted = dict[str, SourceTensor](), dict[str, dict[str, SourceTensor]]()
    for name, tensor in raw.items():
        stem, _, part = name.rpartition(".")
        if part in CACHE:
            continue
        if part in _KNOWN or (part == "weight" and tensor.dtype not in FLOATS):
            parted.setdefault(stem, {})[part] = tensor
        elif tensor.dtype not in FLOATS:
            raise _unknown(tensor)
        else:
            whole[name] = tensor
    return whole, parted


def find_format(stem: str, parts: Parts) -> str:
    """How a weight is stored. Raises InputError if a part is absent, UnsupportedError for other formats."""
    if not parts.keys() & set(CODES):
        raise _unknown(main_part(parts))
    _check_matrices(parts)
    if "qweight" in parts:
        found = _gptq_or_awq(parts)
    elif "weight_packed" in parts:
        found = "compressed-tensors"
    elif parts["weight"].dtype == fp8.DTYPE:
        found = "fp8"
    else:
        raise _unknown(parts["weight"])
    absent = [part for part in NEEDED[found] if part not in parts]
    if found == "fp8" and len(set(fp8.SCALES) & parts.keys()) != 1:
        absent = [f"one of {' and '.join(fp8.SCALES)}"]
    if absent:
        raise InputError(
            f"is stored as {found} does it, but without {', '.join(absent)}",
            where=f"{main_part(parts).path}: {stem}",
            remedy="a file is incomplete; download the checkpoint again",
        )
    return found


def _check_matrices(parts: Parts) -> None:
    for part in sorted(MATRICES & parts.keys()):
        if len(parts[part].shape) != 2 or 0 in parts[part].shape:
            raise InputError(
                f"has shape {list(parts[part].shape)}, expected two sizes of at least 1",
                where=parts[part].where,
                remedy="the checkpoint is damaged; download it again",
            )


def main_part(parts: Parts) -> SourceTensor:
    """The one that a message names for all."""
    named = [parts[part] for part in CODES if part in parts]
    return (named or list(parts.values()))[0]


def _gptq_or_awq(parts: Parts) -> str:
    """They name their tensors alike, but pack along different axes."""
    words, scales = parts["qweight"].shape, parts["scales"].shape if "scales" in parts else ()
    if scales[-1:] == words[-1:] or not scales:
        return "gptq"
    if scales[-1] == 8 * words[-1]:
        return "awq"
    raise UnsupportedError(
        f"has shape {list(words)}, its scales {list(scales)}: neither gptq, which packs along the first axis, nor awq "
        "in its layout gemm, which packs along the second",
        where=parts["qweight"].where,
        remedy=f"{READ}; otherwise start from the unquantized checkpoint",
    )


def _unknown(tensor: SourceTensor) -> UnsupportedError:
    return UnsupportedError(
        f"tensor {tensor.source_name!r} is {tensor.dtype}: part of a quantized weight that no known format explains",
        where=str(tensor.path),
        remedy=f"{READ}; otherwise start from the unquantized checkpoint",
    )
