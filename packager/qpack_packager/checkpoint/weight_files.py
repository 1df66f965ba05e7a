"""Which files of a checkpoint hold its weights: the index decides, then model.safetensors, then an only file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from qpack_packager.checkpoint.json_object import JsonObject, shown
from qpack_schemas.errors import InputError
from qpack_schemas.tensor_file import TensorSpan, read_spans

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_SHARD_OF = re.compile(r"-(\d+)-of-(\d+)\.safetensors$")
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth")

Spans = Mapping[str, Mapping[str, TensorSpan]]


@dataclass(frozen=True)
class WeightFiles:
    """`spans`: file, relative to the directory -> tensor name -> span. `notes`: weight files that were passed over."""

    spans: Spans
    notes: tuple[str, ...]


def find_weights(directory: Path) -> WeightFiles:
    """Raises InputError if it is not clear which files are meant, or one is absent, damaged or unlike the index."""
    present = sorted(p.name for p in directory.glob("*.safetensors") if p.is_file() and not p.name.startswith("."))
    if (directory / INDEX).is_file():
        spans, chosen = _indexed(directory), f"{INDEX} names the shards"
    else:
        name = SINGLE if SINGLE in present else _only(directory, present)
        spans, chosen = {name: read_spans(directory / name)}, f"{name} holds the model"
    notes = tuple(f"{name} is passed over: {chosen}" for name in present if name not in spans)
    return WeightFiles(spans, notes)


def _indexed(directory: Path) -> Spans:
    index = JsonObject.load(directory / INDEX)
    listed = index.object("weight_map")
    if listed is None:
        raise InputError("names no tensor", where=index.at("weight_map"), remedy="download it again")
    for tensor, shard in listed.value.items():
        if not isinstance(shard, str):
            raise InputError(f"is {shown(shard)}, expected the name of a file", where=listed.at(tensor))
        if PurePosixPath(shard).is_absolute() or ".." in PurePosixPath(shard).parts or "\\" in shard:
            raise InputError(f"shard {shard!r} lies outside the checkpoint's directory", where=listed.at(tensor))
    shards = sorted(set(listed.value.values()))
    if absent := [shard for shard in shards if not (directory / shard).is_file()]:
        raise InputError(
            f"names shards that are absent: {', '.join(absent)}",
            where=index.path,
            remedy=f"download them; or delete {INDEX} if the weights were merged into another file",
        )
    spans: Spans = {shard: read_spans(directory / shard) for shard in shards}
    _check_index(listed, spans)
    return spans


def _check_index(listed: JsonObject, spans: Spans) -> None:
    for tensor, shard in listed.value.items():
        if tensor not in spans[shard]:
            others = ", ".join(name for name, held in spans.items() if tensor in held) or "no shard"
            raise InputError(
                f"tensor {tensor!r} is not in shard {shard!r}, where the index puts it, but in {others}",
                where=listed.path,
                remedy="take index and shards from the same download",
            )
    for shard, held in spans.items():
        for tensor in held:
            if (place := listed.value.get(tensor)) != shard:
                says = "does not name it" if place is None else f"puts it in {place!r}"
                raise InputError(
                    f"shard {shard!r} holds tensor {tensor!r}, but the index {says}",
                    where=listed.path,
                    remedy="take index and shards from the same download",
                )


def _only(directory: Path, present: list[str]) -> str:
    if len(present) > 1:
        raise InputError(
            f"{len(present)} safetensors files ({', '.join(present[:4])}{', ...' if len(present) > 4 else ''}) and no "
            f"{INDEX} to say how they belong together",
            where=str(directory),
            remedy=f"download {INDEX}",
        )
    if present:
        part = _SHARD_OF.search(present[0])
        if part and int(part[2]) != 1:
            raise InputError(
                f"{present[0]} is one of {int(part[2])} shards; the others and {INDEX} are absent",
                where=str(directory),
                remedy="download the whole checkpoint",
            )
        return present[0]
    if pickles := sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern)):
        raise InputError(
            f"holds its weights as {pickles[0]}, a pickle, which could run any code when opened",
            where=str(directory),
            remedy="save as safetensors: transformers.AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT)",
        )
    raise InputError("holds no *.safetensors file", where=str(directory), remedy="name the directory of a checkpoint")
