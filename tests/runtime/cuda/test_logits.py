"""Teacher-forced logits come from the GPU's memory: real host code, interpreted kernels, the reference's numbers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cuda_host import interpreted, machine
from qpack_runtime.engine import Engine
from qpack_runtime.logits import forced_logits
from qpack_runtime.reference.executor import ReferenceExecutor


@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-qwen3_5"])
def test_they_are_the_references(
    stub_library: Path, cuda_bundle: Callable[[str, str], Path], tmp_path: Path, model: str
):
    folder = cuda_bundle(model, "float32")
    windows = np.array([[5, 9, 300, 41], [7, 7, 12, 80]], np.int32)
    with machine(stub_library, folder, tmp_path / "log", hook=interpreted(folder)) as booted:
        got = [logits.copy() for logits in forced_logits(booted.engine, windows)]
        reference = Engine(ReferenceExecutor(booted.bundle), booted.bundle.manifest)
        wanted = [logits.copy() for logits in forced_logits(reference, windows)]
        assert len(got) == 3
        np.testing.assert_allclose(got, wanted, atol=2e-4, rtol=0)
