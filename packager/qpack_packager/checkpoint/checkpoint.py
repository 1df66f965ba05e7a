"""A checkpoint directory, opened: everything about it is checked at once, its tensors are mapped one at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from qpack_packager.checkpoint.model_config import ModelConfig, read_model_config
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.weight_files import INDEX, WeightFiles, find_weights
from qpack_schemas.errors import InputError, UnsupportedError
from qpack_schemas.strict_json import JsonValue

CONFIG = "config.json"
_MULTIMODAL_PREFIX, _PREFIX = "model.language_model.", "model."
_DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of the checkpoint. `begin` is its first byte's offset in the file."""

    source_name: str
    path: Path
    dtype: str  # numpy's name: bfloat16, float16, float32 or float64
    shape: tuple[int, ...]
    begin: int
    bytes: int


@dataclass(frozen=True)
class Checkpoint:
    """Tensors go by canonical names: `model.language_model.X` of a multimodal checkpoint is `model.X`, as in others."""

    config_document: JsonValue
    config: ModelConfig
    tensors: Mapping[str, SourceTensor]  # sorted by canonical name, whatever the shards
    notes: list[str]  # what a person should know and what is no error
    files: tuple[str, ...]  # read so far, relative to the directory, sorted

    @classmethod
    def open(cls, text: ModelText) -> "Checkpoint":
        """Reads config, index and the header of every weight file of the directory that `text` belongs to.

        Raises InputError for what is absent, damaged or contradictory, UnsupportedError for models and dtypes that
        qpack does not package.
        """
        directory = text.directory
        if not directory.is_dir():
            remedy = "name a checkpoint's directory; one on the Hub is fetched by `hf download NAME --local-dir DIR`"
            raise InputError("is no directory", where=str(directory), remedy=remedy)
        document = text.object(CONFIG)
        config = read_model_config(document.value, document.path)
        weights = find_weights(directory)
        index = [INDEX] if (directory / INDEX).is_file() else []
        return cls(
            config_document=document.value,
            config=config,
            tensors=_by_canonical_name(directory, weights),
            notes=list(weights.notes),
            files=tuple(sorted([CONFIG, *index, *weights.spans])),
        )

    def load(self, name: str) -> np.ndarray:
        """The tensor with this canonical name, read-only; only its bytes are mapped, until the array is dropped."""
        tensor = self.tensors[name]
        if not tensor.bytes:
            return np.empty(tensor.shape, tensor.dtype)
        data = np.memmap(tensor.path, np.uint8, mode="r", offset=tensor.begin, shape=tensor.bytes)
        return data.view(np.ndarray).view(tensor.dtype).reshape(tensor.shape)


def _by_canonical_name(directory: Path, weights: WeightFiles) -> dict[str, SourceTensor]:
    tensors: dict[str, SourceTensor] = {}
    for file, spans in weights.spans.items():
        for name, span in spans.items():
            if span.dtype not in _DTYPES:
                raise UnsupportedError(
                    f"tensor {name!r} is {span.dtype}, weights must be one of {', '.join(_DTYPES)}",
                    where=str(directory / file),
                    remedy="if this checkpoint is quantized already, start from the unquantized one",
                )
            canonical = _PREFIX + name.removeprefix(_MULTIMODAL_PREFIX) if name.startswith(_MULTIMODAL_PREFIX) else name
            if canonical in tensors:
                raise InputError(
                    f"tensors {tensors[canonical].source_name!r} and {name!r} are the same tensor in two spellings",
                    where=str(directory / file),
                    remedy=f"keep the one with the prefix {_MULTIMODAL_PREFIX!r} or the one with {_PREFIX!r}",
                )
            dtype = np.dtype(_DTYPES[span.dtype]).name
            tensors[canonical] = SourceTensor(name, directory / file, dtype, span.shape, span.begin, span.bytes)
    return dict(sorted(tensors.items()))
