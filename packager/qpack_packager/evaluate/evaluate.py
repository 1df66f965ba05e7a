"""The main path of an evaluation: text -> windows -> logits of the runtime, in each mode -> figures."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.commands.quant_errors import read_quant_errors
from qpack_packager.evaluate.figures import figures, perplexity
from qpack_packager.evaluate.gate import Gate
from qpack_packager.evaluate.measure import Reference, measure
from qpack_packager.evaluate.quality import ModuleError, Quality, ReferenceFigures, verdict
from qpack_packager.evaluate.runner import Device, running
from qpack_packager.evaluate.windows import read_windows
from qpack_packager.progress import Progress
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.bundle_rules import TOKENIZER_PATH
from qpack_schemas.errors import InputError, UsageError

WORST = 10  # modules that are named


def measure_bundle(
    folder: Path,
    text: Path,
    reference: ModelText | Reference | None = None,
    *,
    modes: Sequence[str] = (),
    gate: Gate | None = None,
    device: Device | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Quality:
    """What the bundle in `folder` makes of the first `limit` windows of `text`, in each mode (none: the device's own),
    beside `reference`: a checkpoint directory, or whatever gives logits.

    Raises BundleError if the bundle must not be opened, InputError for a text or reference that can't be used,
    UsageError for a gate without a reference, and what the runtime ends with if it can't boot."""
    if gate and reference is None:
        raise UsageError("a gate compares with a reference", remedy="name the checkpoint: --reference MODEL")
    bundle, progress = open_bundle(folder), progress or Progress()
    windows = read_windows(bundle, text, limit)
    if isinstance(reference, ModelText):
        reference = checkpoint_reference(reference, bundle)
    # A device with one way to compute takes no mode; a mode asked for twice is measured once.
    wanted = list(dict.fromkeys(modes)) or [None]
    with ExitStack() as stack:
        opened = [stack.enter_context(running(folder, windows.ids, mode, device or Device())) for mode in wanted]
        streams = {stream.header["mode"] or stream.header["device"]: stream for stream in opened}
        for note in dict.fromkeys(note for stream in opened for note in stream.header["notes"]):
            progress.note(note)
        batches = -(-len(windows.ids) // opened[0].header["batch"])
        with progress.phase("evaluation", batches * len(streams)) as done:
            tokens, log_likelihood = measure(streams, windows.ids, reference, done)
        for stream in opened:
            stream.end()
    measured = {name: figures(one, log_likelihood) for name, one in tokens.items()}
    count, length = windows.ids.shape
    facts = opened[0].header["facts"]
    return {
        "text_sha256": windows.text_sha256,
        "tokens": count * (length - 1),
        "windows": count,
        "window_length": length,
        "device": opened[0].header["device"],
        "instructions": facts.get("code_path") or facts.get("target") or "numpy",
        "reference": None if log_likelihood is None else _reference_figures(log_likelihood),
        "modes": measured,
        "modules": _worst_modules(bundle),
        "gate": verdict(gate, measured) if gate else None,
    }


def checkpoint_reference(text: ModelText, bundle: Bundle) -> Reference:
    """The unquantized checkpoint in float32, layer by layer. Raises InputError if it has another tokenizer."""
    if text.clean("tokenizer.json").data != (bundle.path / TOKENIZER_PATH).read_bytes():
        raise InputError(
            "has another tokenizer.json than the bundle, so its tokens are others",
            where=str(text.directory),
            remedy="compare with the checkpoint that the bundle was built from",
        )
    return partial(_streamed_logits, Checkpoint.open(text))


def _streamed_logits(checkpoint: Checkpoint, windows: np.ndarray) -> Iterator[np.ndarray]:
    from qpack_packager.calibration.forward import StreamedModel

    with TemporaryDirectory() as folder:
        yield from StreamedModel(checkpoint, Path(folder)).logits(windows)


def _reference_figures(log_likelihood: np.ndarray) -> ReferenceFigures:
    value, error = perplexity(log_likelihood)
    return {"perplexity": value, "perplexity_stderr": error}


def _worst_modules(bundle: Bundle) -> list[ModuleError]:
    errors = read_quant_errors(bundle)
    worst = errors.worst_first[:WORST] if errors else ()
    return [
        {"tensor": one.tensor, "part": one.part, "bits": one.bits, "relative_rms_error": one.relative_rms_error}
        for one in worst
    ]
