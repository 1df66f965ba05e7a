"""Everything that is decided before any weight is read."""

from dataclasses import dataclass

from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.tokenizer_facts import TokenizerFacts, read_tokenizer
from qpack_packager.cuda.lowering.lower import LoweredTarget, lower_targets
from qpack_packager.lowering.lower import Lowered, lower
from qpack_packager.serving import Options, Serving, plan_serving


@dataclass(frozen=True)
class Prepared:
    """All that is known about a bundle before its weights are made; what `qpack plan` shows."""

    text: ModelText
    checkpoint: Checkpoint
    tokenizer: TokenizerFacts
    serving: Serving
    lowered: Lowered
    targets: tuple[LoweredTarget, ...]


def prepare(text: ModelText, options: Options) -> Prepared:
    """Reads headers and text of a checkpoint and decides everything about its bundle."""
    checkpoint = Checkpoint.open(text)
    tokenizer = read_tokenizer(text, checkpoint.config_document, checkpoint.config.vocab_size)
    serving = plan_serving(checkpoint.config.max_context, options)
    lowered = lower(checkpoint, serving, tokenizer.real_vocab_size, str(text.directory))
    return Prepared(
        text, checkpoint, tokenizer, serving, lowered, lower_targets(lowered, options.targets, options.tuning)
    )
