"""A checkpoint's headers -> everything a bundle will hold, before any weight is read: `qpack plan` ends here."""

from collections.abc import Mapping
from dataclasses import dataclass

from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.lowering.builder import Shared
from qpack_packager.lowering.modules import Module
from qpack_packager.lowering.qwen import EMBEDDING, HEAD, QwenLowering
from qpack_packager.planner import place_work
from qpack_packager.serving import Serving
from qpack_packager.weights_policy import Accounting, LayerForms, account, form_of_codes
from qpack_schemas.errors import InputError
from qpack_schemas.program import KINDS, Buffer, Kind, Program


@dataclass(frozen=True)
class Lowered:
    programs: Mapping[Kind, Program]
    buffers: Mapping[str, Buffer]  # shared by both programs: state and io
    modules: tuple[Module, ...]  # in the order of first use, which is the order of the weight files
    accounting: Accounting
    tied: bool

    @property
    def layout(self) -> dict[str, Buffer]:
        """The tensors of the modules, as stored, in the order of the weight files."""
        return {name: buffer for module in self.modules for name, buffer in module.tensors.items()}


def lower(checkpoint: Checkpoint, serving: Serving, real_vocab_size: int, where: str) -> Lowered:
    """Lowers the model in `checkpoint`. Raises InputError for missing, misshapen and unaccounted tensors."""
    tied = is_tied(checkpoint, where)
    forms = LayerForms(serving.rules, imports=any(map(form_of_codes, checkpoint.tensors.values())))
    shared = Shared(checkpoint.tensors, forms, where)
    programs: dict[Kind, Program] = {}
    for kind in KINDS:
        lowering = QwenLowering(checkpoint.config, serving, kind, shared)
        programs[kind] = place_work(lowering.lower(tied=tied, real_vocab_size=real_vocab_size))
    forms.refuse_unused()
    modules = tuple(shared.modules.values())
    dense, quantized = (
        {rows.tensor for module in modules if (module.form == "dense") == kept for rows in module.sources}
        for kept in (True, False)
    )
    accounting = account(checkpoint.tensors, dense, quantized, forms.kept, tied_duplicate=tied, where=where)
    return Lowered(programs, shared.buffers, modules, accounting, tied)


def is_tied(checkpoint: Checkpoint, where: str) -> bool:
    """Whether the head is the embedding. The tensors decide, as in transformers 5: a head that is there and differs is
    used, whatever the config says; one that is absent must have been declared tied at some level."""
    declared = checkpoint.config.declared_tied
    if HEAD in checkpoint.tensors:
        return EMBEDDING in checkpoint.tensors and _same_tensor(checkpoint, HEAD, EMBEDDING)
    if not any(value for _, value in declared):
        said = ", ".join(f"{pointer} is {value}" for pointer, value in declared) or "tie_word_embeddings is absent"
        raise InputError(
            f"there is no {HEAD!r}, and config.json does not tie it to the embedding ({said})",
            where=where,
            remedy="set tie_word_embeddings to true if the model was trained so; otherwise a file is incomplete",
        )
    return True


def _same_tensor(checkpoint: Checkpoint, a: str, b: str) -> bool:
    """Bit for bit, a few thousand lines at a time."""
    kinds = {(checkpoint.tensors[name].dtype, checkpoint.tensors[name].shape) for name in (a, b)}
    if len(kinds) > 1:
        return False
    (_, shape), *_ = kinds
    blocks = ((first, min(first + 4096, shape[0])) for first in range(0, shape[0], 4096))
    return all(checkpoint.lines(a, *block).tobytes() == checkpoint.lines(b, *block).tobytes() for block in blocks)
