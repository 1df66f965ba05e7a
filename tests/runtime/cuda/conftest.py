"""The stub libcuda and the bundles that run on it, made once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bundles import ASSETS
from checkpoints import random_checkpoint
from cuda_bundles import build_cuda_bundle
from cuda_client import build_stub
from cuda_host import TARGET
from qpack_packager.serving import Options

# Interpreting takes milliseconds a program: few buckets of few rows. The longer context has a second split of keys.
SMALL = Options(batches=(1, 4), contexts=(64, 512), prefills=(1, 4), slots=4, targets=(TARGET,))
FORMS = {"tiny-qwen3": ("int8", "int8"), "tiny-qwen3_5": ("bf16", "bf16"), "random qwen2": ("int4", "int8")}


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("cuda_stub"))


@pytest.fixture(scope="session")
def cuda_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """cuda_bundle("tiny-qwen3", "float32"): for sm_89; "random qwen2" has biases, and a width that is no multiple of
    128; each has another form of head and embedding. Only for reading."""
    built: dict[tuple[str, str], Path] = {}

    def get(name: str, dtype: str) -> Path:
        if (name, dtype) not in built:
            folder = tmp_path_factory.mktemp("cuda_bundles")
            random = name.startswith("random")
            model = (
                random_checkpoint(folder / "model", "qwen2", hidden_size=192, num_attention_heads=6)
                if random
                else ASSETS / name
            )
            head, embedding = FORMS[name]
            options = replace(SMALL, dtype=dtype, lm_head=head, embedding=embedding)
            built[name, dtype] = build_cuda_bundle(model, folder / "bundle", options)
        return built[name, dtype]

    return get
