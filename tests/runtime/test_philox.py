"""The sampler's noise against published vectors, its float64 formula and the distribution it claims."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_runtime.reference.philox import gumbel, gumbel_of_words, log, philox4x32

IDS = np.arange(100_000)
ONES, PI = 0xFFFFFFFF, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
SEED = (0x89ABCDEF, 0x01234567)

# counter, key, words: "philox4x32 10" in kat_vectors of Random123 (https://github.com/DEShawResearch/random123)
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(counter, key, words):
    assert tuple(map(int, philox4x32(counter, key))) == words
    many = philox4x32((np.full(3, counter[0]), *counter[1:]), key)
    assert [word.tolist() for word in many] == [[word] * 3 for word in words]


@given(st.integers(0, 248_319), st.integers(0, 2**31 - 1), st.integers(0, ONES), st.integers(0, ONES))
def test_the_noise_of_an_id_comes_from_word_id_mod_4_of_block_id_div_4(token, position, low, high):
    word = philox4x32((token // 4, position, 0, 0), (low, high))[token % 4]
    noise = gumbel(np.array([7, token, token ^ 1]), position, (low, high))
    assert noise[1] == gumbel_of_words(word[None])[0]


def test_noise_is_the_gumbel_transform_of_its_uniform_number():
    words = np.random.default_rng(0).integers(0, 2**32, 1_000_000, dtype=np.uint32)
    u = (words.astype(np.float32) + np.float32(0.5)).astype(np.float64) * 2.0**-32
    words, u = words[u < 1 - 2.0**-24], u[u < 1 - 2.0**-24]
    expected = -np.log(-np.log1p(-u))
    allowed = 3e-7 * (1 + np.abs(expected)) + 2.0**-24 / (1 - u)  # float32, and what forming 1 - u costs near u = 1
    assert (np.abs(gumbel_of_words(words) - expected) <= allowed).all()


def test_every_word_gives_finite_noise():
    noise = gumbel_of_words(np.array([0, 1, 2**30 - 1, 2**30, 2**31, 2**32 - 2, 2**32 - 1], np.uint32))
    assert noise.dtype == np.float32
    assert (np.diff(noise) <= 0).all()
    np.testing.assert_allclose(noise[[0, -1]], [-np.log(2.0**-33), -np.log(24 * np.log(2))], rtol=1e-6)


def test_log_is_accurate_to_two_units_in_the_last_place():
    x = np.exp(np.random.default_rng(1).uniform(-80, 80, 1_000_000)).astype(np.float32)
    np.testing.assert_allclose(log(x), np.log(x.astype(np.float64)), rtol=2e-7, atol=1e-12)


def test_noise_follows_the_gumbel_distribution():
    """Kolmogorov-Smirnov: sqrt(n) * sup |F_n - F| exceeds 1.63 once in a hundred samples (this one is fixed)."""
    noise = np.sort(gumbel(IDS, 41, SEED).astype(np.float64))
    distance = np.abs(np.exp(-np.exp(-noise)) - (np.arange(IDS.size) + 0.5) / IDS.size).max()
    assert distance * np.sqrt(IDS.size) < 1.63


@pytest.mark.parametrize(
    ("ids", "position", "key"),
    [
        (IDS, 42, SEED),
        (IDS, 41 + 2**30, SEED),
        (IDS, 41, (SEED[0] + 1, SEED[1])),
        (IDS, 41, (SEED[0], SEED[1] + 1)),
        (IDS + 1, 41, SEED),
        (IDS + 4, 41, SEED),
    ],
)
def test_noise_of_another_id_position_or_seed_is_unrelated(ids, position, key):
    correlation = np.corrcoef(gumbel(IDS, 41, SEED), gumbel(ids, position, key))[0, 1]
    assert abs(correlation) < 4 / np.sqrt(IDS.size)


def test_noise_has_the_same_bits_on_every_host():
    ids = np.array([0, 1, 2, 3, 4, 151_642, 248_319])
    bits = [0xBF8C1FC6, 0x3F817D59, 0x3F15B12F, 0xBFAFB85A, 0x402B1576, 0x3F17629D, 0x3F6F41AB]
    assert gumbel(ids, 40_959, (0xDEADBEEF, 0xFEEDFACE)).view(np.uint32).tolist() == bits
