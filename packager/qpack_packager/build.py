"""`qpack build`, the main path of the packager: checkpoint -> lowered programs -> weights -> sealed bundle."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from qpack_packager.bundle_writer import BundleWriter, refuse_existing, writing
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.cuda.package import add_kernels
from qpack_packager.describe import describe
from qpack_packager.prepare import Prepared, prepare
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from qpack_packager.text_files import add_text_files
from qpack_packager.weights import make
from qpack_schemas.bundle_rules import PROGRAM_PATHS
from qpack_schemas.program import Buffer
from qpack_schemas.strict_json import dump_compact

QUANT_LOG = "quant_log.jsonl"


def build(
    text: ModelText, output: Path, options: Options, progress: Progress, *, kernel_cache: Path | None = None
) -> str:
    """Makes the bundle at `output` and returns its bundle_id. Nothing is at `output` unless the bundle is whole.

    `kernel_cache` keeps compiled kernels between builds; by default a folder in the user's cache."""
    refuse_existing(output)
    prepared = prepare(text, options)
    for note in prepared.checkpoint.notes:
        progress.note(note)
    with writing(output) as writer:
        part = add_text_files(text, writer)
        for note in part.notes:
            progress.note(note)
        for kind, program in prepared.lowered.programs.items():
            writer.add(PROGRAM_PATHS[kind], dump_compact(program.to_json()))
        kernels = add_kernels(prepared.targets, writer, progress, kernel_cache)
        places = _add_weights(prepared, writer, progress)
        return writer.seal(describe(prepared, places, writer.files, part, kernels))


def _add_weights(prepared: Prepared, writer: BundleWriter, progress: Progress) -> dict[str, tuple[str, str]]:
    modules = prepared.lowered.modules
    layout: dict[str, Buffer] = {name: buffer for module in modules for name, buffer in module.tensors.items()}
    log: list[bytes] = []
    with progress.phase("weights", len(modules)) as step:

        def arrays() -> Iterator[tuple[str, np.ndarray]]:
            for module in modules:
                made = make(module, prepared.checkpoint)
                if made.log is not None:
                    log.append(dump_compact(made.log))
                yield from made.tensors.items()
                step(module.name)

        places = writer.add_weights(layout, arrays())
    writer.add(QUANT_LOG, b"".join(log))
    return places
