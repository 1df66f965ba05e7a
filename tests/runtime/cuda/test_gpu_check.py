"""scripts/gpu_check.py, as it runs on a GPU's host, on the stub libcuda with interpreted kernels."""

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bundles import ASSETS
from hypothesis import given
from hypothesis import strategies as st

from cuda_bundles import build_cuda_bundle
from cuda_client import environment
from cuda_host import TARGET
from qpack_packager.serving import Options

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "scripts"
OPTIONS = Options(batches=(1, 3), contexts=(64,), prefills=(1, 4), slots=3, targets=(TARGET,))
FEW = ("--steps", "2", "--decode-steps", "3", "--boots", "2", "--tokens", "2", "--prompt", "6")

# Python runs this before the script, in every process. What interprets needs seconds to be imported, and boots run no
# kernels.
COMPUTING = """
import os, sys
from pathlib import Path
if "BUNDLE_UNDER_CHECK" in os.environ and "--multiprocessing-fork" in sys.orig_argv:
    os.environ["TRITON_INTERPRET"] = "1"
    from cuda_client import Stub
    from cuda_host import interpreted
    stub, compute = Stub(Path("libcuda.so.1")), interpreted(Path(os.environ["BUNDLE_UNDER_CHECK"]))
    def hook(name, image, dims, arguments):
        compute(name, image, dims, arguments)
        if name.startswith(os.environ.get("BROKEN_KERNEL", "none")):
            import ctypes
            count = len(arguments) // 8
            address = int.from_bytes(arguments[int(os.environ["BROKEN_ARGUMENT"]) :][:8], "little")
            value = ctypes.c_float.from_address(address)
            value.value = value.value * 1.01 + 1e-3
    stub.set_hook(hook)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    built: dict[tuple[str, str], Path] = {}

    def get(model: str, dtype: str) -> Path:
        if (model, dtype) not in built:
            from dataclasses import replace

            folder = tmp_path_factory.mktemp("bundles") / model
            built[model, dtype] = build_cuda_bundle(ASSETS / model, folder, replace(OPTIONS, dtype=dtype))
        return built[model, dtype]

    return get


def check(
    library: Path | None, out: Path, *arguments: str, computing: Path | None = None, **variables: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The script in a process of its own, and what it wrote into check.json."""
    folder = out.parent / "python"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(COMPUTING, encoding="utf-8")
    path = os.pathsep.join(map(str, (folder, ROOT / "tests")))
    settings = {**os.environ, "PYTHONPATH": path, **(environment(library, {}) if library else {}), **variables}
    if computing:
        settings["BUNDLE_UNDER_CHECK"] = str(computing)
    command = [sys.executable, str(SCRIPTS / "gpu_check.py"), *arguments, "--out", str(out), *FEW]
    ran = subprocess.run(command, env=settings, capture_output=True, encoding="utf-8", check=False)
    file = out / "check.json"
    return ran, json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
