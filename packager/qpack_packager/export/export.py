"""`qpack export`, its main path: bundle -> weights as the checkpoint had them -> packed tensors -> a new checkpoint.

No weight is rounded: codes and scales are moved; what not every engine takes as codes becomes float32, exactly.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from qpack_packager.bundle_writer import refuse_existing, writing
from qpack_packager.checkpoint.checkpoint import CONFIG
from qpack_packager.export.bundle_weights import BundleWeights, Weight
from qpack_packager.export.compressed_tensors import CompressedTensors
from qpack_packager.export.config import export_config
from qpack_packager.export.gptq import Gptq
from qpack_packager.export.model_card import model_card
from qpack_packager.export.packing import Format, layer_of
from qpack_packager.export.write import Entry, write_shards
from qpack_packager.lowering.qwen import EMBEDDING, HEAD
from qpack_packager.progress import Progress
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.errors import UnsupportedError, UsageError
from qpack_schemas.strict_json import dump_canonical

FormatName = Literal["compressed-tensors", "gptq"]
_FORMATS: Mapping[FormatName, Callable[[BundleWeights, Sequence[Weight]], Format]] = {
    "compressed-tensors": CompressedTensors,
    "gptq": Gptq,
}


def export(path: Path, output: Path, format_name: FormatName, progress: Progress) -> None:
    """Makes a checkpoint of the bundle at `path`, every byte of which is verified first. Nothing is at `output` unless
    it is whole. Raises UnsupportedError for what the format can't hold without rounding, FitError for a disk without
    room for it, UsageError for an output in a bundle."""
    refuse_existing(output)
    bundle = open_bundle(path)
    weights = BundleWeights(bundle)
    packed = [weight for weight in weights.weights if _is_packed(weight)]
    dtype = _scale_dtype(packed, path)
    made = _FORMATS[format_name](weights, packed)
    entries = [entry for weight in weights.weights for entry in _entries(weight, weights, made)]
    heads = {weight.name: weight for weight in weights.weights if weight.name in (EMBEDDING, HEAD)}
    dense = [layer_of(weight.name) for weight in weights.weights if _is_dense_linear(weight)]
    dense += [layer_of(HEAD)] if HEAD not in heads else []
    config = export_config(bundle, dtype=dtype, tied=HEAD not in heads, quantization=made.quantization_config(dense))
    head = _in_words(heads[HEAD]) if HEAD in heads else "the head is tied to it"
    card = model_card(bundle, format_name=format_name, dtype=dtype, embedding=_in_words(heads[EMBEDDING]), head=head)
    texts = _texts(bundle) | {CONFIG: dump_canonical(config), "README.md": card.encode("utf-8")}
    weight_bytes = sum(entry.bytes for entry in entries)
    needed = weight_bytes + sum(map(len, texts.values()))
    with writing(output) as writer:
        writer.check_disk(needed, f"the export needs {needed:,} bytes")
        for name, data in texts.items():
            writer.add(name, data)
        with progress.phase("weights", weight_bytes, "bytes") as step:
            write_shards(writer, entries, step)


def _is_packed(weight: Weight) -> bool:
    """Every quantized layer, and an int4 head. Embeddings and int8 heads become numbers, which every engine takes."""
    if weight.name in (EMBEDDING, HEAD):
        return weight.name == HEAD and weight.form == "int4"
    return weight.form != "dense"


def _is_dense_linear(weight: Weight) -> bool:
    return not _is_packed(weight) and len(weight.shape) == 2 and weight.name != EMBEDDING


def _scale_dtype(packed: Sequence[Weight], path: Path) -> str:
    """The dtype of all scales: engines read all of them in that of the model."""
    found = {weight.dtype: weight for weight in packed}
    if not found:
        raise UsageError(
            "no weight of a layer is quantized in it", where=str(path), remedy="serve the checkpoint it was made of"
        )
    if len(found) > 1:
        said = " and ".join(f"{dtype} in {weight.name}" for dtype, weight in sorted(found.items()))
        raise UnsupportedError(
            f"its scales are {said}, and a checkpoint has one dtype", where=str(path),
            remedy="build the bundle without rules that quantize what its checkpoint leaves unquantized",
        )  # fmt: skip
    return next(iter(found))


def _entries(weight: Weight, weights: BundleWeights, made: Format) -> list[Entry]:
    if _is_packed(weight):
        return made.entries(weight)

    def numbers() -> Iterator[np.ndarray]:
        return (weights.numbers(weight, *block) for block in weight.blocks())

    return [Entry(weight.name, weight.dtype if weight.form == "dense" else "float32", weight.shape, numbers)]


def _in_words(weight: Weight) -> str:
    what = "embedding" if weight.name == EMBEDDING else "head"
    if weight.form == "dense":
        return f"the {what} as in the base, {weight.dtype}"
    if _is_packed(weight):
        return f"the {what} in {weight.form}"
    return f"the {what} was {weight.form} in the bundle and is written as float32, code times scale"


def _texts(bundle: Bundle) -> dict[str, bytes]:
    """Tokenizer, generation config, chat template and licences, under the names that a checkpoint has them."""
    paths = [bundle.path / entry["path"] for entry in bundle.manifest["text"]]
    return {path.name: path.read_bytes() for path in paths if path.name != CONFIG}
