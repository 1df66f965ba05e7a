"""The calibration of a build: its text, what it works with, and what its bytes depend on beside that."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from qpack_packager.calibration.calibrated import Calibrated
from qpack_packager.evaluate.windows import LENGTH, Corpus, cut
from qpack_packager.journal import ACTIVATIONS, work_of
from qpack_packager.prepare import Prepared
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from qpack_schemas.bundle_rules import TOKENIZER_PATH

WINDOWS = 128  # the most that are read of a text: 65,536 tokens


@dataclass(frozen=True)
class Calibration:
    calibrated: Calibrated
    text_sha256: str
    environment: Mapping[str, str]
    scratch_bytes: int  # of the disk: what goes into a layer and what comes out of it


def environment() -> dict[str, str]:
    """What the codes depend on beside their inputs: name -> version or value."""
    return {
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "numpy": version("numpy"),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def start_calibration(prepared: Prepared, options: Options, bundle: Path, progress: Progress) -> Calibration:
    """`bundle` is the directory of the unfinished bundle: its tokenizer cuts the text, its work folder holds the
    activations. Raises InputError for a text that can't be used."""
    assert options.calibration is not None  # what plan_serving asks of --method gptq
    checkpoint, text = prepared.checkpoint, Corpus.of_build(options.calibration, prepared.text)
    longest = min(LENGTH, checkpoint.config.max_context)
    windows = cut(text, bundle / TOKENIZER_PATH, longest, WINDOWS)
    threads = len(os.sched_getaffinity(0))
    calibrated = Calibrated(
        checkpoint, windows.ids, work_of(bundle) / ACTIVATIONS, max_fallbacks=options.max_fallbacks, threads=threads
    )
    for note in calibrated.notes:
        progress.note(note)
    count, length = windows.ids.shape
    progress.note(f"calibrating on {count} windows of {length} tokens from {options.calibration.name}")
    scratch = 2 * windows.ids.size * checkpoint.config.hidden_size * 4  # float32
    return Calibration(calibrated, windows.text_sha256, environment(), scratch)
