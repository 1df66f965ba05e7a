"""The gate of a build: the bundle is measured before it is put in place."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from qpack_packager.bundle_writer import BundleWriter
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.evaluate.evaluate import measure_bundle
from qpack_packager.evaluate.gate import Gate
from qpack_packager.evaluate.quality import QUALITY, QUALITY_PAGE, encode, manifest_entry, rounded
from qpack_packager.evaluate.scratch import check_scratch
from qpack_packager.evaluate.windows import LENGTH, Corpus, cut
from qpack_packager.prepare import Prepared
from qpack_packager.progress import Progress
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import TOKENIZER_PATH
from qpack_schemas.errors import UsageError


@dataclass(frozen=True)
class Evaluation:
    """What `--eval` and its limits ask for. A bundle that misses the gate is kept only if `keep_failed`."""

    text: Path
    gate: Gate | None
    keep_failed: bool

    @classmethod
    def wanted(
        cls, text: Path | None, max_ppl_ratio: float | None, max_kl: float | None, *, keep_failed: bool
    ) -> "Evaluation | None":
        """Raises UsageError for a gate without a text and for a text that is no file, ModuleNotFoundError if what the
        reference needs is not installed: a build should not find out at its end."""
        limits = max_ppl_ratio is not None or max_kl is not None
        if text is None:
            if limits or keep_failed:
                raise UsageError("a gate needs a text to measure the bundle on", remedy="give one with --eval FILE")
            return None
        if not text.is_file():
            raise UsageError("is no file", where=str(text), remedy="name a text that the model was not trained on")
        for module in ("torch", "transformers"):
            if find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return cls(text, Gate(max_ppl_ratio, max_kl) if limits else None, keep_failed)

    def check(self, prepared: Prepared, folder: Path) -> None:
        """Before any weight is made: raises what `measure` would for a text that can't be used, and FitError if the
        disk has no room for it. `folder` is the unfinished bundle, which has its tokenizer already."""
        config, serving = prepared.checkpoint.config, prepared.serving
        text = Corpus.of_build(self.text, prepared.text)
        windows = cut(text, folder / TOKENIZER_PATH, min(LENGTH, serving.context))
        count, length = windows.ids.shape
        vocab = prepared.tokenizer.real_vocab_size
        check_scratch((count, length), rows=serving.most_rows("decode"), vocab=vocab, hidden=config.hidden_size)

    def measure(
        self, writer: BundleWriter, name: str, manifest: Mapping[str, object], checkpoint: ModelText, progress: Progress
    ) -> tuple[Bundle, list[str]]:
        """Measures the sealed bundle, which will be called `name`, beside its checkpoint, writes the report, and seals
        the verdict into the manifest. Returns the bundle, and what missed the gate."""
        text = Corpus.of_build(self.text, checkpoint)
        quality = measure_bundle(writer.folder, text, checkpoint, gate=self.gate, progress=progress)
        verdict = {"quality": manifest_entry(quality)} if self.gate else {}
        bundle = writer.seal({**manifest, **verdict})
        writer.add_detached(QUALITY, encode(quality))
        from qpack_packager.evaluate.report_page import page

        writer.add_detached(QUALITY_PAGE, page(writer.folder, rounded(quality), name).encode("utf-8"))
        return bundle, quality["gate"]["findings"] if quality["gate"] else []
