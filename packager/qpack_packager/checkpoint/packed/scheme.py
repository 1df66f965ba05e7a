"""What config.json says about the quantization of a checkpoint, before its tensors are asked."""

from dataclasses import dataclass
from typing import NoReturn

from qpack_packager.checkpoint.json_object import JsonObject, shown
from qpack_schemas.errors import InputError, UnsupportedError

READ = "qpack reads gptq, awq (gemm), compressed-tensors (pack-quantized, float-quantized) and fp8"


@dataclass(frozen=True)
class Scheme:
    """The name of a method, and its settings."""

    method: str
    settings: JsonObject


def read_scheme(config: JsonObject) -> Scheme | None:
    """None if config.json says nothing of quantization. Raises InputError if it says two things."""
    levels = [level for level in (config, config.object("text_config")) if level]
    found = [
        settings
        for level in levels
        for key in ("quantization_config", "compression_config")
        if (settings := level.object(key))
    ]
    if not found:
        return None
    for other in found[1:]:
        if other.value != found[0].value:
            raise InputError(
                f"differs from {found[0].pointer}: {shown(other.value)} and {shown(found[0].value)}",
                where=other.at(),
                remedy="keep the one that the weights were made with",
            )
    settings = found[0]
    if "quant_method" not in settings.value and settings.pointer.endswith("compression_config"):
        return Scheme("compressed-tensors", settings)
    return Scheme(settings.required_string("quant_method"), settings)


def group_sizes(level: JsonObject, key: str = "group_size") -> set[int]:
    """The group size that is said there, -1 for one group of all columns; none if it is absent."""
    if level.value.get(key) is None:
        return set()
    size = level.integer(key, minimum=-1)
    if size == 0:
        raise InputError("is 0, expected a size or -1", where=level.at(key))
    return {size}


def config_groups(settings: JsonObject) -> list[JsonObject]:
    """What compressed-tensors says about each group of modules."""
    groups = settings.object("config_groups")
    return [group for key in groups.value if (group := groups.object(key))] if groups else []


def weight_groups(settings: JsonObject) -> list[JsonObject]:
    """And of these, what is about weights."""
    return [weights for group in config_groups(settings) if (weights := group.object("weights"))]


def refuse_setting(level: JsonObject, key: str, reason: str) -> NoReturn:
    raise UnsupportedError(
        f"{key} is {shown(level.value.get(key))}: {reason}",
        where=level.at(key),
        remedy=f"{READ}; otherwise start from the unquantized checkpoint",
    )
