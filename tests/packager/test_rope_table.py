"""The rotary table holds what transformers computes, by operations that no host rounds differently."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from qpack_packager.rope_table import cos_sin, rope_table


@pytest.mark.parametrize(("rotary_dim", "theta"), [(64, 1e7), (128, 1e6), (128, 5e6), (8, 1e4)])
def test_the_table_equals_transformers_rotary_embedding(rotary_dim: int, theta: float):
    config = Qwen3Config(head_dim=rotary_dim, rope_parameters={"rope_type": "default", "rope_theta": theta})
    positions = torch.arange(4096)[None]
    cosine, sine = Qwen3RotaryEmbedding(config)(torch.zeros(1), positions)
    table = rope_table(4096, rotary_dim, theta)
    assert table.shape == (4096, 2, rotary_dim // 2)
    # One unit in the last place of an inverse frequency moves the angle at position p by p * 6e-8.
    for ours, theirs in ((table[:, 0], cosine), (table[:, 1], sine)):
        np.testing.assert_allclose(ours, theirs[0, :, : rotary_dim // 2].numpy(), atol=4096 * 6e-8, rtol=0)


@given(st.floats(0, 2.0**22, allow_subnormal=False))
def test_cosine_and_sine_are_those_of_the_math_library(angle: float):
    cosine, sine = cos_sin(np.array([angle]))
    assert abs(cosine[0] - math.cos(angle)) < 1e-15
    assert abs(sine[0] - math.sin(angle)) < 1e-15
