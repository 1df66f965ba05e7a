"""Tensors of a checkpoint as its model sees them; those of a quantized one are stored in several parts each.

The tensors decide how a weight is stored; config.json must say the same.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from qpack_packager.checkpoint.json_object import JsonObject
from qpack_packager.checkpoint.model_config import read_model_config
from qpack_packager.checkpoint.packed.awq import Awq
from qpack_packager.checkpoint.packed.compressed_tensors import CompressedTensors
from qpack_packager.checkpoint.packed.fp8 import Fp8
from qpack_packager.checkpoint.packed.gptq import Gptq
from qpack_packager.checkpoint.packed.packed_weight import Dequantized, PackedWeight
from qpack_packager.checkpoint.packed.parts import Parts, find_format, main_part, take_apart
from qpack_packager.checkpoint.packed.scheme import READ, Scheme, read_scheme
from qpack_packager.checkpoint.source_tensor import SourceTensor, Tensor
from qpack_packager.weights_policy import DROPPED
from qpack_schemas.errors import InputError, UnsupportedError

READERS = {"gptq": Gptq, "awq": Awq, "compressed-tensors": CompressedTensors, "fp8": Fp8}  # by format
FORMATS = {
    "gptq": ("gptq",),
    "awq": ("awq",),
    "compressed-tensors": ("compressed-tensors", "fp8"),
    "fp8": ("fp8",),
}  # by quant_method
DENSE = ("in_proj_a", "in_proj_b")  # no bundle has them as codes
EMBEDDING = "model.embed_tokens"


def assemble(raw: Mapping[str, SourceTensor], config: JsonObject) -> dict[str, Tensor]:
    """Tensors by canonical name, sorted. `config` is the checkpoint's config.json.

    Raises UnsupportedError for what no known format explains, InputError for parts that are absent or do not fit
    together, and for tensors and config.json that contradict each other.
    """
    unused = {name: tensor for name, tensor in raw.items() if any(fnmatchcase(name, glob) for glob, _ in DROPPED)}
    whole, parted = take_apart({name: tensor for name, tensor in raw.items() if name not in unused})
    formats = {stem: find_format(stem, parts) for stem, parts in parted.items()}
    scheme = read_scheme(config)
    if scheme is None:
        _refuse_undeclared(formats, parted, config)
        return {name: raw[name] for name in sorted(raw)}
    _check_scheme(scheme, formats, parted)
    readers = {name: READERS[name](scheme.settings) for name in sorted(set(formats.values()))}
    tensors: dict[str, Tensor] = {**unused, **whole}
    for stem, parts in parted.items():
        if (name := f"{stem}.weight") in whole:
            raise InputError(
                f"is there quantized as well, as {main_part(parts).source_name!r}",
                where=whole[name].where,
                remedy="delete the one that the model is not meant to have",
            )
        tensors[name] = _as_used(stem, readers[formats[stem]].read(parts))
    for name in _empty_biases(whole, parted, config):
        del tensors[name]
    return dict(sorted(tensors.items()))


def _refuse_undeclared(formats: Mapping[str, str], parted: Mapping[str, Parts], config: JsonObject) -> None:
    for stem, found in formats.items():
        raise InputError(
            f"is stored as {found} does it; {config.path} has no quantization_config",
            where=main_part(parted[stem]).where,
            remedy="take config.json and weights from the same download; a quantize_config.json beside them belongs "
            "into config.json as quantization_config, with a quant_method",
        )


def _check_scheme(scheme: Scheme, formats: Mapping[str, str], parted: Mapping[str, Parts]) -> None:
    where = scheme.settings.at("quant_method")
    if scheme.method not in FORMATS:
        raise UnsupportedError(
            f"quant_method {scheme.method!r} is not supported",
            where=where,
            remedy=f"{READ}; otherwise start from the unquantized checkpoint",
        )
    for stem, found in formats.items():
        if found not in FORMATS[scheme.method]:
            raise InputError(
                f"is stored as {found} does it; {where} is {scheme.method!r}",
                where=main_part(parted[stem]).where,
                remedy="take config.json and weights from the same download",
            )
    if not formats:
        raise InputError(
            f"quant_method is {scheme.method!r}, but no tensor is stored so",
            where=where,
            remedy=f"delete {scheme.settings.pointer} if the weights were dequantized; otherwise a file is missing",
        )


def _as_used(stem: str, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, PackedWeight):
        return tensor
    if stem == EMBEDDING:
        raise UnsupportedError(
            f"the embedding is int4 ({tensor.format}); a bundle has it as numbers or as int8",
            where=tensor.words.where,
            remedy="export the checkpoint with the embedding unquantized",
        )
    return Dequantized(tensor) if stem.endswith(DENSE) else tensor


def _empty_biases(whole: Parts, parted: Mapping[str, Parts], config: JsonObject) -> list[str]:
    """GPTQ tools give every linear a bias, also where the model has none; then it is zero and says nothing."""
    found = [name for stem in parted if (name := f"{stem}.bias") in whole]
    if not found:
        return []
    letters = read_model_config(config.value, config.path).attention_bias
    used = tuple(f"self_attn.{letter}_proj.bias" for letter in sorted(letters))
    return [name for name in found if not name.endswith(used) and not whole[name].read().any()]
