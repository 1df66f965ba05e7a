"""Bundles for tests, built once per session."""

from pathlib import Path
from typing import Any

from qpack_packager.build import build
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.progress import Progress
from qpack_packager.serving import Options

ASSETS = Path(__file__).parent / "assets"
SMALL = Options(batches=(1, 4), contexts=(64, 128), prefills=(1, 16, 64), slots=4)


def build_bundle(model: Path, output: Path, options: Options = SMALL) -> Path:
    build(ModelText(model), output, options, Progress("plain"))
    return output


def own_files(bundle: Path) -> list[Path]:
    """Without what lies beside a bundle: its provenance, say."""
    beside = ("provenance.", "signature.", "quality.")
    return [path for path in sorted(bundle.rglob("*")) if path.is_file() and not path.name.startswith(beside)]


def stored_weights(bundle: Path) -> dict[str, Any]:
    """All tensors of the weight files but their fillers, as safetensors' own library reads them into PyTorch's."""
    from safetensors.torch import load_file  # with PyTorch, which few tests that want a bundle need

    files = sorted((bundle / "weights").iterdir())
    return {name: one for file in files for name, one in load_file(file).items() if not name.startswith("pad.")}
