"""Bundles for tests, built once per session."""

from pathlib import Path

from qpack_packager.build import build
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.progress import Progress
from qpack_packager.serving import Options

ASSETS = Path(__file__).parent / "assets"
SMALL = Options(batches=(1, 4), contexts=(64, 128), prefills=(1, 16, 64), slots=4)


def build_bundle(model: Path, output: Path, options: Options = SMALL) -> Path:
    build(ModelText(model), output, options, Progress("plain"))
    return output
