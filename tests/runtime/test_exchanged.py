"""A bundle whose place another one takes while it is booted doesn't boot: nothing of the two is ever mixed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bundles import ASSETS, build_bundle
from qpack_delivery.oci.files import exchange
from qpack_runtime.boot import boot
from qpack_runtime.boot_watch import BootWatch
from qpack_runtime.exchanged import refuse_exchanged
from qpack_schemas.errors import QpackError


class Exchanging(BootWatch):
    """Calls `happens` when `awaited` begins."""

    def __init__(self, awaited: str, happens: Callable[[], object]):
        super().__init__()
        self._awaited, self._happens = awaited, happens

    def begin(self, phase: str) -> None:
        super().begin(phase)
        if phase == self._awaited:
            self._happens()


@pytest.fixture
def bundle(tiny_bundle: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle("tiny-qwen3"), tmp_path / "bundle"))


@pytest.fixture(scope="module")
def damped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shapes in files of the same sizes, and other weights."""
    model = Path(shutil.copytree(ASSETS / "tiny-qwen3", tmp_path_factory.mktemp("damped") / "tiny-qwen3"))
    weights = model / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-2:] = b"\x00\x3f"  # bfloat16 0.5
    weights.write_bytes(raw)
    return build_bundle(model, model.parent / "bundle")


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("verify", ["full", "quick"])
def test_an_exchange_in_any_phase_after_the_bundle_was_opened_ends_the_boot(
    device, verify, bundle: Path, damped: Path, tmp_path: Path
):
    other = Path(shutil.copytree(damped, tmp_path / "other"))
    phases = list(boot(bundle, device, verify=verify).seconds)
    assert phases[0] == "verify"
    assert "tokenizer" in phases
    for phase in phases[1:]:
        watch = Exchanging(phase, lambda: exchange(bundle, other))
        with pytest.raises(QpackError, match=f"^{bundle}: another bundle took its place while it was booted"):
            boot(bundle, device, verify=verify, watch=watch)


def test_an_exchange_before_the_bundle_is_opened_boots_the_new_one(bundle: Path, damped: Path, tmp_path: Path):
    new = boot(damped).bundle.bundle_id
    other = Path(shutil.copytree(damped, tmp_path / "other"))
    booted = boot(bundle, watch=Exchanging("verify", lambda: exchange(bundle, other)))
    assert booted.bundle.bundle_id == new


def test_a_copy_of_the_very_bundle_is_no_other_one(bundle: Path, tmp_path: Path):
    booted = boot(bundle)
    shutil.copytree(bundle, tmp_path / "copy")
    exchange(bundle, tmp_path / "copy")
    refuse_exchanged(booted.bundle)
    shutil.rmtree(bundle)
    with pytest.raises(QpackError, match="another bundle took its place"):
        refuse_exchanged(booted.bundle)
