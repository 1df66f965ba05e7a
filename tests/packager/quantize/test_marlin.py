"""The Marlin layout, against arrays made by an independent implementation of the published permutation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bundles import ASSETS
from qpack_packager.quantize import marlin
from qpack_packager.quantize.marlin import pack, permute_scales
from qpack_runtime.reference.marlin import dequantize, unpack, unpermute_scales

GOLDEN = np.load(ASSETS / "marlin.npz")
CASES = [name.removeprefix("codes_") for name in GOLDEN if name.startswith("codes_")]


@pytest.mark.parametrize("case", CASES)
def test_packed_words_and_scales_equal_the_golden_vectors(case: str):
    assert np.array_equal(pack(GOLDEN[f"codes_{case}"]), GOLDEN[f"packed_{case}"])
    assert np.array_equal(permute_scales(GOLDEN[f"scales_{case}"]), GOLDEN[f"scales_permuted_{case}"])


@given(k=st.integers(1, 12), n=st.integers(1, 4), data=st.data())
def test_unpack_is_the_inverse_of_pack(k: int, n: int, data: st.DataObject):
    codes = data.draw(arrays.arrays(np.uint8, (16 * k, 64 * n), elements=st.integers(0, 15)))
    words = pack(codes)
    assert np.array_equal(unpack(words), codes)
    assert np.array_equal(marlin.unpack(words), codes)
    assert marlin.unpack(words).T.flags.c_contiguous


@given(groups=st.integers(1, 6), n=st.integers(1, 4))
def test_unpermute_is_the_inverse_of_permute(groups: int, n: int):
    scales = np.arange(groups * n * 64, dtype=np.float32).reshape(groups, n * 64)
    assert np.array_equal(unpermute_scales(permute_scales(scales)), scales)


def test_every_code_lands_where_the_published_formula_says():
    k, n = 32, 128
    codes = np.random.default_rng(0).integers(0, 16, (k, n)).astype(np.uint8)
    words = pack(codes).view(np.uint32)
    for row in range(k):
        for column in range(n):
            kt, p0, t, p2 = row // 16, row // 8 % 2, row // 2 % 4, row % 2
            nt, j, p1, g = column // 64, column // 16 % 4, column // 8 % 2, column % 8
            word = int(words[kt, 128 * nt + 4 * (4 * g + t) + j])
            assert word >> 4 * (p0 + 2 * p1 + 4 * p2) & 15 == codes[row, column]


def test_dequantized_is_code_minus_8_times_the_scale_of_its_group():
    rng = np.random.default_rng(1)
    codes, scales = rng.integers(0, 16, (256, 64)).astype(np.uint8), rng.standard_normal((2, 64)).astype(np.float32)
    wanted = (codes.astype(np.float32) - 8) * scales[np.arange(256) // 128]
    assert np.array_equal(dequantize(pack(codes), permute_scales(scales)), wanted)
