"""A checkpoint directory, opened: everything about it is checked at once, its tensors are mapped one at a time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from qpack_packager.checkpoint.model_config import ModelConfig, read_model_config
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.quantized import assemble
from qpack_packager.checkpoint.source_tensor import DTYPES, SourceTensor, Tensor, as_packed
from qpack_packager.checkpoint.weight_files import INDEX, WeightFiles, find_weights
from qpack_schemas.errors import InputError, UnsupportedError
from qpack_schemas.strict_json import JsonValue

CONFIG = "config.json"
_MULTIMODAL_PREFIX, _PREFIX = "model.language_model.", "model."


@dataclass(frozen=True)
class Checkpoint:
    """Tensors go by canonical names: `model.language_model.X` of a multimodal checkpoint is `model.X`, as in others."""

    config_document: JsonValue
    config: ModelConfig
    tensors: Mapping[str, Tensor]  # sorted by canonical name, whatever the shards
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
            tensors=assemble(_by_canonical_name(directory, weights), document),
            notes=list(weights.notes),
            files=tuple(sorted([CONFIG, *index, *weights.spans])),
        )

    def holding(self, names: Iterable[str]) -> Self:
        """The same, with the int4 tensors of these names read once."""
        held = {name: packed.held() for name in names if (packed := as_packed(self.tensors[name]))}
        return replace(self, tensors={**self.tensors, **held})

    def lines(self, name: str, first: int, last: int) -> np.ndarray:
        """Lines `first` to `last` of the tensor with this canonical name."""
        return self.tensors[name].lines(first, last)


def _by_canonical_name(directory: Path, weights: WeightFiles) -> dict[str, SourceTensor]:
    tensors: dict[str, SourceTensor] = {}
    for file, spans in weights.spans.items():
        for name, span in spans.items():
            if span.dtype not in DTYPES:
                raise UnsupportedError(
                    f"tensor {name!r} is {span.dtype}, tensors must be one of {', '.join(DTYPES)}",
                    where=str(directory / file),
                    remedy="start from the unquantized checkpoint",
                )
            canonical = _PREFIX + name.removeprefix(_MULTIMODAL_PREFIX) if name.startswith(_MULTIMODAL_PREFIX) else name
            if canonical in tensors:
                raise InputError(
                    f"tensors {tensors[canonical].source_name!r} and {name!r} are the same tensor in two spellings",
                    where=str(directory / file),
                    remedy=f"keep the one with the prefix {_MULTIMODAL_PREFIX!r} or the one with {_PREFIX!r}",
                )
            dtype = np.dtype(DTYPES[span.dtype]).name
            tensors[canonical] = SourceTensor(name, directory / file, dtype, span.shape, span.begin, span.bytes)
    return dict(sorted(tensors.items()))
