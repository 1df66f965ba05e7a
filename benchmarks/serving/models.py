"""The model of the comparison in both servers' forms, made of the checkpoint that cpu_peers.py measures too."""

import subprocess
from pathlib import Path

from peers.checkpoint import write_checkpoint
from peers.gguf_file import write_gguf
from qpack_packager.build import build
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from qpack_schemas.errors import QpackError

# All layers and the head int4 in both, buckets as `qpack build` makes them by itself, for prompts and answers of up to
# 1024 tokens.
OPTIONS = Options(contexts=(512, 1024), lm_head="int4")


def make_models(work: Path, llama_server: Path, threads: int) -> tuple[Path, Path]:
    """A bundle and a GGUF file of pure Q4_0 in `work`, each made unless it is there. llama-quantize is looked for
    beside llama-server. Needs 3 GB of disk."""
    checkpoint, bundle, plain, gguf = (
        work / name for name in ("checkpoint", "serving-bundle", "bf16.gguf", "q4_0-pure.gguf")
    )
    work.mkdir(parents=True, exist_ok=True)
    if not checkpoint.exists():
        write_checkpoint(checkpoint)
    if not bundle.exists():
        build(ModelText(checkpoint), bundle, OPTIONS, Progress("plain"))
    if not plain.exists():
        write_gguf(checkpoint, plain, "bf16")
    if not gguf.exists():
        partial = gguf.with_suffix(".partial")
        command = [llama_server.with_name("llama-quantize"), "--pure", plain, partial, "Q4_0", str(threads)]
        ran = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        if ran.returncode:
            raise QpackError(f"llama-quantize ended with exit code {ran.returncode}: {ran.stderr[-2000:]}")
        partial.rename(gguf)
    return bundle, gguf
