"""The second moments of a matrix's inputs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from checkpoints import TINY_QWEN3
from qpack_packager.calibration import hessians
from qpack_packager.calibration.forward import StreamedModel
from qpack_packager.calibration.hessians import see_inputs
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText


@pytest.fixture
def model(tmp_path: Path) -> StreamedModel:
    """For its threads."""
    return StreamedModel(Checkpoint.open(ModelText(TINY_QWEN3)), tmp_path, threads=2)


def test_it_is_the_mean_of_all_outer_products_twice(model: StreamedModel, monkeypatch: pytest.MonkeyPatch):
    """The Hessian of the squared error of a Linear's outputs, per token."""
    monkeypatch.setattr(hessians, "BLOCK", 4)
    linear, rng = torch.nn.Linear(6, 3), np.random.default_rng(0)
    windows = [torch.from_numpy(rng.standard_normal((length, 6))).float() for length in (5, 9, 1)]
    hessian = see_inputs(linear, linear, windows, model)
    every = torch.cat(windows).double()
    squared = torch.autograd.functional.hessian(lambda line: ((every @ line) ** 2).mean(), torch.zeros(6).double())
    assert hessian.tokens == 15
    assert torch.allclose(hessian.finish(), torch.as_tensor(squared), rtol=1e-5)


def test_nothing_behind_the_matrix_is_computed(model: StreamedModel):
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.register_forward_pre_hook(lambda *_: pytest.fail("the second matrix was reached"))
    layer = torch.nn.Sequential(first, second)
    see_inputs(first, layer, [torch.ones(2, 4)], model)
    with pytest.raises(pytest.fail.Exception):  # and the hook is gone
        layer(torch.ones(2, 4))
