"""A signed bundle, and who signed it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from signatures import Keys, copy_bundle, make_keys, sign


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return make_keys(tmp_path)


@pytest.fixture
def unsigned(tiny_bundle: Callable[[str], Path], tmp_path: Path) -> Path:
    return copy_bundle(tiny_bundle("tiny-qwen3"), tmp_path / "bundle")


@pytest.fixture
def signed(unsigned: Path, keys: Keys) -> Path:
    return sign(unsigned, keys, "1.4.0")
