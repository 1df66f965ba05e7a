"""Builds the bundles for scripts/gpu_check.py: `python scripts/make_gpu_bundles.py OUT --target cuda:sm_89`.

Needs the packager and its kernels, no GPU; run from a checkout, whose tests/assets has the two trained tiny models.
Each is built with 16 and with 32 bits, then two models of published shapes with random weights.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from qpack_packager.build import build
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from qpack_schemas.report import errors_reported
from random_models import RANDOM_MODELS, write_model

ASSETS = Path(__file__).parents[1] / "tests" / "assets"
TINY = ("tiny-qwen3", "tiny-qwen3_5")
DTYPES = ("bfloat16", "float32")
BUNDLES = [*(f"{model}-{dtype}" for model in TINY for dtype in DTYPES), *RANDOM_MODELS]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("output", type=click.Path(path_type=Path, file_okay=False))
@click.option("--target", multiple=True, required=True, help="As of `qpack build`: cuda:sm_89; cuda is common GPUs.")
@click.option("--only", default="", metavar="NAMES", help=f"Of {', '.join(BUNDLES)}, with commas; all by default.")
@click.option("--kernel-cache", type=click.Path(path_type=Path, file_okay=False), help="As of `qpack build`.")
def main(output: Path, target: tuple[str, ...], only: str, kernel_cache: Path | None) -> None:
    """Builds one bundle per name into the folder OUTPUT. Those that are there already stop the build."""
    names = [name for name in only.split(",") if name] or BUNDLES
    if wrong := [name for name in names if name not in BUNDLES]:
        raise click.BadParameter(f"{wrong[0]!r} is no bundle; there are {', '.join(BUNDLES)}", param_hint="--only")
    output.mkdir(parents=True, exist_ok=True)
    with errors_reported(extra="packager,kernels"):
        for name in names:
            click.echo(name, err=True)
            with TemporaryDirectory(dir=output) as work:  # beside the bundles: models of gigabytes may not fit /tmp
                model, dtype = _model(name, Path(work))
                build(
                    ModelText(model), output / name, Options(dtype=dtype, targets=target), Progress(),
                    kernel_cache=kernel_cache,
                )  # fmt: skip


def _model(name: str, work: Path) -> tuple[Path, str]:
    """A checkpoint directory, and the dtype of activations."""
    if name in RANDOM_MODELS:
        return write_model(work / name, RANDOM_MODELS[name], ASSETS / TINY[0]), DTYPES[0]
    model, _, dtype = name.rpartition("-")
    return ASSETS / model, dtype


if __name__ == "__main__":
    sys.exit(main())
