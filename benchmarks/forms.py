"""Which weights of a model are worth more bits: `python benchmarks/forms.py MODEL TEXT`.

Each kind of projection is stored in int8 while the others are int4, and the bundle is measured on TEXT beside its
checkpoint: how much of the KL divergence that costs no bits elsewhere goes away, and what it costs per token. The
recipes that come with qpack were chosen by it. Needs the extras packager, runtime and quality.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

from qpack_packager.build import build
from qpack_packager.calibration.forward import StreamedModel
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.evaluate.evaluate import measure_bundle
from qpack_packager.evaluate.windows import Corpus
from qpack_packager.progress import Progress
from qpack_packager.recipe import find_recipe, read_recipe
from qpack_packager.serving import Options
from qpack_schemas.bundle import open_bundle
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.traffic import decode_traffic

KINDS = {
    "attention q, k, v": "*.self_attn.[qkv]_proj.weight",
    "attention o": "*.self_attn.o_proj.weight",
    "delta q, k, v, z": "*.linear_attn.in_proj_[qz]*.weight",
    "delta out": "*.linear_attn.out_proj.weight",
    "MLP gate, up": "*.mlp.[gu]*_proj.weight",
    "MLP down": "*.mlp.down_proj.weight",
}
EVERYWHERE = {"int8 everywhere": "int8", "bf16 everywhere, int8 head": "bf16"}
OPTIONS = Options(batches=(1, 8), contexts=(512,), prefills=(16,))


class Reference:
    """The checkpoint's logits, computed once and kept in a file."""

    def __init__(self, checkpoint: Checkpoint, folder: Path):
        self._model, self._folder = StreamedModel(checkpoint, folder), folder
        self._kept: dict[bytes, Path] = {}

    def __call__(self, windows: np.ndarray) -> Iterator[np.ndarray]:
        fresh = [window for window in windows if window.tobytes() not in self._kept]
        if fresh:
            for window, logits in zip(fresh, self._model.logits(np.array(fresh)), strict=True):
                path = self._folder / f"{len(self._kept)}.npy"
                np.save(path, logits)
                self._kept[window.tobytes()] = path
        for window in windows:
            yield np.load(self._kept[window.tobytes()])


def kinds(checkpoint: Checkpoint, base: Options) -> dict[str, Options]:
    """Every kind of projection that the model has, in int8 by itself."""
    cases = {"int4 everywhere": base, "int4 head": replace(base, lm_head="int4")}
    for kind, glob in KINDS.items():
        if any(glob.split(".")[1] in name for name in checkpoint.tensors):
            cases[f"int8: {kind}"] = replace(base, rules=((glob, "int8"),))
    everywhere = {name: replace(base, rules=(("*", form),)) for name, form in EVERYWHERE.items()}
    return {**cases, **everywhere}


def chosen(recipes: Sequence[str], base: Options) -> dict[str, Options]:
    cases = {"int4 everywhere": base}
    for name in recipes:
        said = read_recipe(find_recipe(name))
        rules = tuple(said.get("modules", {}).items())
        cases[name] = replace(base, rules=rules, lm_head=said.get("lm_head", base.lm_head))
    return cases


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("text", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--windows", type=int, help="Of 512 tokens.  [default: all]")
@click.option("--calibration", type=click.Path(path_type=Path, exists=True), help="Round by GPTQ with this text.")
@click.option("--recipe", "recipes", multiple=True, help="These instead of each kind by itself.")
def main(model: Path, text: Path, windows: int | None, calibration: Path | None, recipes: tuple[str, ...]) -> None:
    """A table: KL divergence, perplexity ratio and bytes per decoded token for each choice."""
    checkpoint = Checkpoint.open(ModelText(model))
    base = replace(OPTIONS, method="gptq" if calibration else "rtn", calibration=calibration)
    print(f"{'':28}{'mean KL':>10}{'+-':>9}{'ratio':>9}{'top-1':>9}{'MB/token':>10}")
    with TemporaryDirectory() as name:
        reference, progress = Reference(checkpoint, Path(name)), Progress("json")
        for case, options in (chosen(recipes, base) if recipes else kinds(checkpoint, base)).items():
            bundle = Path(name) / case
            build(ModelText(model), bundle, options, progress)
            quality = measure_bundle(bundle, Corpus(text), reference, limit=windows, progress=progress)
            figures = quality["modes"]["fast"]
            opened = open_bundle(bundle, digests=False)
            step = decode_traffic(opened.programs["decode"], shared_buffers(opened.manifest), 1, 256)
            print(
                f"{case:28}{figures['kl_mean']:10.5f}{figures['kl_stderr'] or 0:9.5f}{figures['ppl_ratio']:9.4f}"
                f"{figures['top1_agreement']:9.3f}{step.total / 1e6:10.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
