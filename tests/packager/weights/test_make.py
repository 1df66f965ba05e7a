"""Modules are the same bytes however their lines are cut and spread over threads, and never in memory all at once."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundles import SMALL
from checkpoints import TINY_QWEN3_5, random_checkpoint
from packed_checkpoints import AWQ_CONFIG, GPTQ_CONFIG, Pack, awq, gptq, packed_checkpoint
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.lowering.lower import lower
from qpack_packager.serving import plan_serving
from qpack_packager.weights import make
from qpack_packager.weights.make import Maker

ODD: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 200,
    "vocab_size": 520,
}  # no whole groups, no whole tiles
EVEN: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 384}  # read as they are
BUILD = """
import sys
from pathlib import Path
from bundles import build_bundle
build_bundle(Path(sys.argv[1]), Path(sys.argv[2]))
status = Path("/proc/self/status").read_text(encoding="utf-8")
print(status.partition("VmHWM:")[2].split()[0])  # kB; getrusage would count the parent of the fork as well
"""


@pytest.fixture(scope="module", params=[ODD, EVEN], ids=["odd", "even"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Untied, so that embedding and head may differ; q_proj in halves."""
    folder = tmp_path_factory.mktemp("model")
    return Checkpoint.open(ModelText(random_checkpoint(folder, "qwen3_5", tied=False, **request.param)))


def made(checkpoint: Checkpoint, workers: int, head: str = "int8") -> Iterator[tuple[str, object]]:
    """Name -> bytes of every tensor, and the line of the log of every module."""
    serving = plan_serving(checkpoint.config.max_context, replace(SMALL, lm_head=head, embedding="bf16"))
    with ThreadPoolExecutor(workers) as pool:
        maker = Maker(checkpoint, pool, workers)
        for module in lower(checkpoint, serving, 512, "").modules:
            new = maker.make(module)
            for name, pieces in new.tensors.items():
                yield name, b"".join(np.ascontiguousarray(piece).tobytes() for piece in pieces)
            yield module.name, new.log


@pytest.mark.parametrize("head", ["int8", "int4"])
@pytest.mark.parametrize(("workers", "weights"), [(1, 1), (2, 1 << 14), (5, 1 << 16), (2, 1 << 30)])
def test_bytes_do_not_depend_on_workers_or_blocks(
    head: str, workers: int, weights: int, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    whole = dict(made(checkpoint, 1, head))
    monkeypatch.setattr(make, "BLOCK_WEIGHTS", weights)
    assert dict(made(checkpoint, workers, head)) == whole


@pytest.mark.parametrize(("workers", "weights"), [(1, 1), (2, 1 << 14), (2, 1 << 30)])
@pytest.mark.parametrize(("config", "pack"), [(GPTQ_CONFIG, gptq), (AWQ_CONFIG, awq)], ids=["gptq", "awq"])
def test_the_bytes_of_an_import_do_not_depend_on_them_either(
    config: Any, pack: Pack, workers: int, weights: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model, _ = packed_checkpoint(tmp_path / "model", TINY_QWEN3_5, config, pack, symmetric=config is GPTQ_CONFIG)
    checkpoint = Checkpoint.open(ModelText(model))
    whole = dict(made(checkpoint, 1, "int8"))
    monkeypatch.setattr(make, "BLOCK_WEIGHTS", weights)
    assert dict(made(checkpoint, workers, "int8")) == whole


class Immediate(Executor):
    """Carries out what it is given at once, and counts it."""

    def __init__(self) -> None:
        self.done = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Future[Any]()
        future.set_result(fn(*args, **kwargs))
        self.done += 1
        return future


def test_no_more_blocks_are_ahead_of_the_writer_than_workers_need(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    """A worker that is faster than the disk must not fill the memory."""
    monkeypatch.setattr(make, "BLOCK_WEIGHTS", 1)
    serving = plan_serving(checkpoint.config.max_context, replace(SMALL, lm_head="int8", embedding="bf16"))
    (head,) = (module for module in lower(checkpoint, serving, 512, "").modules if module.name == "lm_head")
    pool, taken = Immediate(), 0
    for piece in Maker(checkpoint, pool, 2).make(head).tensors["lm_head.q"]:
        taken += 1
        assert len(piece) == 64
        assert pool.done <= taken + 2 * make.AHEAD
    assert taken == pool.done == head.padded[0] // 64


@pytest.mark.nightly
@pytest.mark.parametrize("imported", [False, True], ids=["rounded", "imported"])
def test_peak_memory_of_a_process_does_not_grow_with_the_layers(imported: bool, tmp_path: Path):
    """Resident, as the system counts it, so that mapped files and what libraries allocate are in it. The largest
    module, gate and up, has 4.2 MB of codes; beyond a tiny model's build there are those and a few blocks."""
    sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 8192, "vocab_size": 512}
    peaks = []
    for layers, extra in ((1, {}), (2, sizes), (20, sizes)):
        model = random_checkpoint(tmp_path / f"{layers}", "qwen3", num_hidden_layers=layers, **extra)
        if imported:
            model, _ = packed_checkpoint(tmp_path / f"{layers} packed", model, AWQ_CONFIG, awq, symmetric=False)
        command = [sys.executable, "-c", BUILD, str(model), str(tmp_path / f"bundle {layers}")]
        path = {"PYTHONPATH": ":".join([str(Path(__file__).parents[2]), *filter(None, sys.path)])}
        ran = subprocess.run(command, env=path, capture_output=True, encoding="utf-8", check=False)
        assert ran.returncode == 0, ran.stderr
        peaks.append(int(ran.stdout.split()[-1]) * 1024)
    tiny, two, twenty = peaks
    assert twenty < two + 8 * 2**20
    assert twenty < tiny + 64 * 2**20 < tiny + (tmp_path / "20/model.safetensors").stat().st_size // 4
