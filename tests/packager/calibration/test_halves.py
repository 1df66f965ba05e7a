"""A Hessian is factored in its own memory, and nothing of it is lost."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from qpack_packager.calibration import halves
from qpack_packager.calibration.halves import Halves

K = 3072
ROUND = """
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from qpack_packager.calibration.gptq import factor
from qpack_packager.calibration.hessians import Hessian
from qpack_packager.calibration.rounding import round_weight


def peak():
    return int(Path("/proc/self/status").read_text(encoding="utf-8").partition("VmHWM:")[2].split()[0])  # kB


def calibrate(k):
    generator, hessian = torch.Generator().manual_seed(0), Hessian(k)
    hessian.see([torch.randn(64, k, generator=generator)], SimpleNamespace(each=lambda *what: map(*what)))
    made = hessian.finish()
    round_weight(torch.randn(32, k, generator=generator).numpy(), factor(made, 1e-9))  # not enough


torch.set_num_threads(1)
calibrate(256)  # the libraries' own memory is there
before = peak()
calibrate(int(sys.argv[1]))
print(peak() - before)
"""


def definite(k: int) -> torch.Tensor:
    """float64 [k, k], symmetric to the last bit."""
    inputs = torch.from_numpy(np.random.default_rng(0).standard_normal((2 * k, k)))
    half = (inputs.T @ inputs / k).tril()
    return half + half.tril(-1).T


@pytest.fixture(params=[(16, 64), (16, 70), (64, 16), (1, 5)], ids=str)
def k(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of several blocks, the last one whole or not, or of less than one."""
    block, k = request.param
    monkeypatch.setattr(halves, "BLOCK", block)
    return k


def test_the_factor_is_that_of_the_damped_inverse(k: int):
    matrix, order = definite(k), torch.randperm(k, generator=torch.Generator().manual_seed(0))
    made = Halves(matrix.clone(), order)
    assert made.factor_inverse(0.5)
    upper = made.matrix.triu()
    damped = matrix[order][:, order] + 0.5 * torch.eye(k, dtype=torch.float64)
    assert torch.allclose(upper.T @ upper, torch.linalg.inv(damped), rtol=1e-10, atol=1e-12)


def test_the_matrix_is_there_as_well(k: int):
    matrix, order = definite(k), torch.randperm(k, generator=torch.Generator().manual_seed(1))
    lines = torch.from_numpy(np.random.default_rng(2).standard_normal((7, k)))
    made = Halves(matrix.clone(), order)
    assert made.factor_inverse(0.5)
    assert torch.allclose(made.products(lines), (lines @ matrix * lines).sum(1), rtol=1e-12)
    made.rewind()
    assert torch.equal(made.matrix, matrix[order][:, order])
    made.give_back()
    assert torch.equal(made.matrix, matrix)


def test_what_fails_can_be_tried_again(k: int):
    matrix = definite(k) - 8 * torch.eye(k, dtype=torch.float64)
    made, again = Halves(matrix.clone(), torch.arange(k)), Halves(matrix.clone(), torch.arange(k))
    assert not made.factor_inverse(0.5)
    made.rewind()
    assert made.factor_inverse(9)
    assert again.factor_inverse(9)
    assert torch.equal(made.matrix, again.matrix)


def test_a_factor_that_float32_cannot_hold_is_none():
    assert not Halves(torch.full((1, 1), 1e-80, dtype=torch.float64), torch.arange(1)).factor_inverse(0)


def test_beside_the_hessian_there_are_a_few_blocks():
    """Resident, as the system counts it: from the first input to the rounded weight, with an attempt that fails."""
    path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-c", ROUND, str(K)]
    ran = subprocess.run(command, env=path, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) * 1024 < 2 * K * K * 8
