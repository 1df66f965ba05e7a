"""`qpack build`, the main path of the packager: checkpoint -> lowered programs -> weights -> sealed bundle."""

from pathlib import Path

from qpack_packager.bundle_writer import is_resumable, refuse_existing, writing
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.cuda.package import add_kernels, compilers_of
from qpack_packager.describe import describe, describe_model, describe_quant
from qpack_packager.evaluate.build_gate import Evaluation
from qpack_packager.evaluate.gate import missed
from qpack_packager.prepare import prepare
from qpack_packager.progress import Progress
from qpack_packager.provenance import PROVENANCE, provenance
from qpack_packager.sbom import SBOM, bill_of_materials
from qpack_packager.serving import Options
from qpack_packager.source_files import SourceFiles
from qpack_packager.text_files import make_text_files
from qpack_packager.weights.add import add_weights, check_disk, fingerprint
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import PROGRAM_PATHS
from qpack_schemas.strict_json import dump_canonical, dump_compact


def build(
    text: ModelText,
    output: Path,
    options: Options,
    progress: Progress,
    *,
    kernel_cache: Path | None = None,
    resume: bool = False,
    evaluation: Evaluation | None = None,
    recipe: Path | None = None,
) -> Bundle:
    """Makes the bundle at `output`. Nothing is there unless the bundle is whole.

    `kernel_cache` keeps compiled kernels between builds; by default a folder in the user's cache. With `resume` the
    build goes on in what one that was interrupted has left, if that was the same build, and leaves what it has made if
    it is interrupted itself. `evaluation` measures it before it is put in place. `recipe` is where the options come
    from, for the provenance. Raises QualityError if it misses the gate."""
    refuse_existing(output)
    prepared = prepare(text, options)
    for note in prepared.checkpoint.notes:
        progress.note(note)
    names = {*prepared.checkpoint.files, *prepared.tokenizer.files}
    with SourceFiles(text.directory, names) as hashing:
        part = make_text_files(text)
        for note in part.notes:
            progress.note(note)
        mark = hashing.then(fingerprint(prepared, options))
        # Whether something that was left is of this build is known by the digests: then they come first.
        sources = hashing.all(progress) if resume and is_resumable(output) else None
        with writing(output, mark if resume else None) as writer:
            check_disk(prepared.lowered, writer)
            for path, data in part.contents.items():
                writer.add(path, data)
            if evaluation:
                evaluation.check(prepared, writer.folder)
            for kind, program in prepared.lowered.programs.items():
                writer.add(PROGRAM_PATHS[kind], dump_compact(program.to_json()))
            kernels = add_kernels(prepared.targets, writer, progress, kernel_cache)
            weights = add_weights(prepared, options, writer, progress, mark)
            sources = sources or hashing.all(progress)
            quant, compilers = describe_quant(prepared), compilers_of(prepared.targets)
            bill = bill_of_materials(describe_model(prepared), quant, sources, part, compilers)
            writer.add(SBOM, dump_canonical(bill))
            manifest = describe(prepared, sources, weights, writer.files, part, kernels)
            bundle, findings = writer.seal(manifest), list[str]()
            if evaluation:
                bundle, findings = evaluation.measure(writer, output.name, manifest, text, progress)
                if findings and not evaluation.keep_failed:
                    raise missed(findings, output, kept=False)
            eval_text = evaluation.text if evaluation else None
            told = provenance(bundle.bundle_id, options, sources, text, recipe=recipe, eval_text=eval_text)
            writer.add_detached(PROVENANCE, dump_compact(told))
    if findings:
        raise missed(findings, output, kept=True)
    return bundle.moved_to(output)
