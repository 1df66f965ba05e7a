"""Everything that is decided before any weight is read."""

from dataclasses import dataclass
from pathlib import Path

from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.tokenizer_facts import TokenizerFacts, read_tokenizer
from qpack_packager.lowering.lower import Lowered, lower
from qpack_packager.serving import Options, Serving, plan_serving


@dataclass(frozen=True)
class Prepared:
    """All that is known about a bundle before its weights are made; what `qpack plan` shows."""

    checkpoint: Checkpoint
    tokenizer: TokenizerFacts
    serving: Serving
    lowered: Lowered


def prepare(model: Path, options: Options) -> Prepared:
    """Reads headers and text of the checkpoint at `model` and decides everything about its bundle."""
    checkpoint = Checkpoint.open(model)
    tokenizer = read_tokenizer(model, checkpoint.config_document, checkpoint.config.vocab_size)
    serving = plan_serving(checkpoint.config.max_context, options)
    lowered = lower(checkpoint, serving, tokenizer.real_vocab_size, str(model))
    return Prepared(checkpoint, tokenizer, serving, lowered)
