"""The main path of an evaluation: text -> windows -> logits of the runtime, in each mode -> figures."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.tokenizer_facts import TOKENIZER
from qpack_packager.commands.quant_errors import read_quant_errors
from qpack_packager.evaluate.figures import figures, perplexity
from qpack_packager.evaluate.gate import Gate
from qpack_packager.evaluate.measure import Reference, measure
from qpack_packager.evaluate.quality import ModuleError, Quality, ReferenceFigures, verdict
from qpack_packager.evaluate.runner import Device, running
from qpack_packager.evaluate.scratch import check_scratch
from qpack_packager.evaluate.windows import Corpus, Windows, read_windows
from qpack_packager.progress import Progress
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.bundle_rules import TOKENIZER_PATH
from qpack_schemas.errors import InputError, UsageError

WORST = 10  # modules that are named


def measure_bundle(
    folder: Path,
    text: Corpus,
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
        _check_scratch(windows, bundle)
        note = _other_source(reference.directory, bundle)
        reference = checkpoint_reference(reference, bundle)
        if note:
            progress.note(note)
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


def _check_scratch(windows: Windows, bundle: Bundle) -> None:
    model, (count, length) = bundle.manifest["model"], windows.ids.shape
    rows = max(bucket["rows"] for bucket in bundle.manifest["buckets"] if bucket["program"] == "decode")
    check_scratch((count, length), rows=rows, vocab=model["real_vocab_size"], hidden=model["hidden_size"])


def checkpoint_reference(text: ModelText, bundle: Bundle) -> Reference:
    """The unquantized checkpoint in float32, layer by layer. Raises InputError if it has another tokenizer or none, and
    what Checkpoint.open raises."""
    checkpoint = Checkpoint.open(text)
    found = text.clean(TOKENIZER).data if TOKENIZER in text else None
    if found != (bundle.path / TOKENIZER_PATH).read_bytes():
        raise InputError(
            "has no tokenizer.json"
            if found is None
            else "has another tokenizer.json than the bundle, so its tokens are others",
            where=str(text.directory),
            remedy="compare with the checkpoint that the bundle was built from",
        )
    return partial(_streamed_logits, checkpoint)


def _other_source(directory: Path, bundle: Bundle) -> str | None:
    """A note if the reference's files can't be those that the bundle was built from, by their sizes. It may be all the
    same what another tool has made that checkpoint of."""
    for file in bundle.manifest["source"]["files"]:
        path = directory / file["path"]
        size = path.stat().st_size if path.is_file() else None
        if size != file["bytes"]:
            here = "is absent" if size is None else f"has {size:,} bytes"
            told = f"{file['path']} {here} there, it had {file['bytes']:,}"
            return f"{directory} is not the checkpoint that the bundle was built from: {told}"
    return None


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
