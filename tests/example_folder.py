"""A working directory with everything that the examples in the programs' help name, and a way to run them in it."""

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from checkpoints import TINY_QWEN3
from cuda_bundles import build_cuda_bundle
from qpack_packager.cli import main as qpack
from qpack_packager.serving import Options
from qpack_runtime.cli import main as qpack_runtime
from signatures import copy_bundle, make_keys, sign
from tuning_kits import stand_in_kernels, stand_in_kit

PROGRAMS = {"qpack": qpack, "qpack-runtime": qpack_runtime}
GPU = Options(batches=(1,), contexts=(64,), prefills=(16,), slots=1, targets=("cpu", "cuda:sm_89"))


def make_folder(tiny_bundle: Callable[[str], Path], folder: Path) -> None:
    copy_bundle(tiny_bundle("tiny-qwen3"), folder / "bundle")
    keys = make_keys(folder)
    keys.public.rename(folder / "key.pub.pem")
    sign(folder / "bundle", keys, "1.4.0")
    shutil.copytree(tiny_bundle("tiny-qwen3_5"), folder / "other-bundle")
    build_cuda_bundle(TINY_QWEN3, folder / "gpu-bundle", GPU)
    stand_in_kit(TINY_QWEN3, folder / "kit", GPU)
    shutil.copytree(TINY_QWEN3, folder / "Qwen3-0.6B")
    text = (TINY_QWEN3 / "eval.txt").read_text(encoding="utf-8")
    (folder / "held-out.txt").write_text(text[:4_000], encoding="utf-8")
    (folder / "chat.json").write_text(json.dumps([{"role": "user", "content": "Who art thou?"}]), encoding="ascii")
    (folder / "keys.txt").write_text("a-key-that-is-long-enough\n", encoding="ascii")
    np.save(folder / "windows.npy", np.ones((2, 8), np.int32))
    made = run("qpack-runtime bench bundle --batch 1 --steps 8 --format json > there.json", folder)
    assert made.exit_code == 0, made.output


def run(example: str, folder: Path) -> Result:
    """As a shell would, in `folder`; of its syntax words, quotes, `<` and `>`. Kernels are stand-ins: compiling real
    ones takes minutes."""
    program, *words = shlex.split(example)
    files = {sign: words.pop(words.index(sign) + 1) for sign in "<>" if sign in words}
    words = [word for word in words if word not in files]
    before = os.getcwd()
    os.chdir(folder)
    try:
        given = Path(files["<"]).read_bytes() if "<" in files else None
        with stand_in_kernels():
            result = CliRunner().invoke(PROGRAMS[program], words, input=given)
        if ">" in files:
            Path(files[">"]).write_bytes(result.stdout_bytes)
    finally:
        os.chdir(before)
    return result
