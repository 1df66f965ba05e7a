"""All weights of a bundle, module after module, with a journal of what is finished."""

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpack_packager.bundle_writer import BundleWriter
from qpack_packager.evaluate.windows import Corpus
from qpack_packager.journal import ACTIVATIONS, Journal, work_of
from qpack_packager.lowering.lower import Lowered
from qpack_packager.lowering.modules import Module
from qpack_packager.prepare import Prepared
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from qpack_packager.weights.make import Made, Maker
from qpack_packager.weights.shards import WeightShards, plan_weights
from qpack_schemas.manifest import CONTRACT_VERSION, SourceFile
from qpack_schemas.strict_json import dump_compact

if TYPE_CHECKING:
    from qpack_packager.calibration.start import Calibration

QUANT_LOG = "quant_log.jsonl"


@dataclass(frozen=True)
class Weights:
    """What was made. `log` has a line for each quantized module; `calibration` is None for methods that need none."""

    places: Mapping[str, tuple[str, str]]  # tensor -> (file, sha256 of its bytes)
    log: Sequence[Mapping[str, Any]]
    calibration: "Calibration | None"


def fingerprint(prepared: Prepared, options: Options) -> Callable[[list[SourceFile]], str]:
    """What makes, of the source files, the sha256 of everything that the weight files depend on. Raises InputError for
    a calibration text that can't be read."""
    lowered, text = prepared.lowered, prepared.text
    calibration = Corpus.of_build(options.calibration, text).read()[1] if options.calibration else None
    facts = {
        "version": CONTRACT_VERSION,
        "method": options.method,
        "calibration": [calibration, text.declared.pairs, text.legacy] if calibration else None,
        "environment": _environment() if options.method == "gptq" else None,
        "modules": [
            [m.name, m.form, m.imported, m.theta, [[rows.tensor, rows.part] for rows in m.sources]]
            for m in lowered.modules
        ],
        "tensors": [[name, buffer.dtype, list(buffer.extent(1))] for name, buffer in lowered.layout.items()],
    }
    return lambda sources: hashlib.sha256(dump_compact(facts | {"sources": sources})).hexdigest()


def check_disk(lowered: Lowered, writer: BundleWriter, scratch: int = 0) -> None:
    """Raises FitError if the weights, which are nearly all of a bundle, and `scratch` bytes of activations don't fit on
    the disk. What an interrupted build left of both is there already."""
    plans = plan_weights(lowered.layout).values()
    planned = sum(max(span.begin + span.bytes for span in plan.spans.values()) for plan in plans)
    weights = max(0, planned - _bytes_in(writer.folder / "weights"))
    activations = max(0, scratch - _bytes_in(work_of(writer.folder) / ACTIVATIONS))
    besides = f", the activations of the calibration {activations:,}" if activations else ""
    writer.check_disk(weights + activations, f"the weights need {weights:,} bytes{besides}")


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*"))


def add_weights(
    prepared: Prepared, options: Options, writer: BundleWriter, progress: Progress, mark: Future[str]
) -> Weights:
    """Writes the weight files and the quantization log. `mark` is the build's fingerprint: what a journal with the same
    one says is finished, and is there, is taken over."""
    lowered, workers = prepared.lowered, len(os.sched_getaffinity(0))
    sizes = {module.name: _source_bytes(module, prepared) for module in lowered.modules}
    calibration = _calibration(prepared, options, writer, progress) if options.method == "gptq" else None
    if calibration:
        check_disk(lowered, writer, calibration.scratch_bytes)
    logs: list[Mapping[str, Any]] = []
    journal, shards = Journal(writer.folder, mark), WeightShards(writer.folder, lowered.layout)
    try:
        with (
            progress.phase("weights", sum(sizes.values()), "bytes") as step,
            ThreadPoolExecutor(workers, "weights") as pool,
        ):
            maker = Maker(prepared.checkpoint, pool, workers, calibration and calibration.calibrated)
            begun: dict[str, Made] = {}
            for module, following in zip(lowered.modules, [*lowered.modules[1:], None], strict=True):
                if following and following.name not in journal.finished:
                    begun[following.name] = maker.make(following)
                log = _add(module, begun.pop(module.name, None), maker, shards, journal)
                logs += [] if log is None else [log]
                step(module.name, sizes[module.name])
        shards.finish()
    finally:
        shards.abandon()
        journal.close()
    writer.files += shards.entries
    writer.add(QUANT_LOG, b"".join(map(dump_compact, logs)))
    return Weights(shards.places, logs, calibration)


def _environment() -> dict[str, str]:
    """Imported here for the same reason as below."""
    from qpack_packager.calibration.start import environment

    return environment()


def _calibration(prepared: Prepared, options: Options, writer: BundleWriter, progress: Progress) -> "Calibration":
    """Imported here: it needs torch, which rounding to nearest does without."""
    from qpack_packager.calibration.start import start_calibration

    return start_calibration(prepared, options, writer.folder, progress)


def _add(
    module: Module, made: Made | None, maker: Maker, shards: WeightShards, journal: Journal
) -> Mapping[str, Any] | None:
    """One module, made or taken over. Returns its line of the quantization log."""
    finished = journal.finished.get(module.name) if maker.keeps(module) else None
    if finished and all(shards.take_over(name, finished["tensors"][name]) for name in module.tensors):
        return finished["log"]
    made = made or maker.make(module)
    digests: dict[str, str] = {}
    for name, pieces in made.tensors.items():
        if name in shards.places:  # its file had it, but not all of the module
            for _ in pieces:
                pass
            digests[name] = shards.places[name][1]
        else:
            digests[name] = shards.write(name, pieces)
    journal.enter(module.name, digests, made.log)
    return made.log


def _source_bytes(module: Module, prepared: Prepared) -> int:
    """What is read for a module; for a table, which is computed, what is written."""
    read = 0
    for rows, lines in zip(module.sources, module.lines, strict=True):
        dtype = prepared.checkpoint.tensors[rows.tensor].dtype
        weight = 0.5 if dtype == "int4" else np.dtype(dtype).itemsize
        read += int(lines * math.prod(module.shape[1:]) * weight)
    return read or sum(buffer.bytes() for buffer in module.tensors.values())
