"""The stub libcuda, built once."""

from pathlib import Path

import pytest

from cuda_client import build_stub


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("cuda_stub"))
