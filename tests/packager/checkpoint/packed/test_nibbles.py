"""Both ways of taking words apart, against one code at a time."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qpack_packager.checkpoint.packed.awq import READ, WRITTEN
from qpack_packager.checkpoint.packed.nibbles import IN_ORDER, by_bytes, by_shifts

WORDS = arrays(np.int32, st.tuples(st.integers(0, 3), st.integers(0, 4)), elements=st.integers(-(2**31), 2**31 - 1))


def code(word: Any, element: int, order: tuple[int, ...]) -> int:
    """That of one element of eight: bits 4p to 4p + 3 of the word, where order[p] is the element."""
    return int(word) % 2**32 // 16 ** order.index(element) % 16


@given(WORDS, st.permutations(range(8)))
def test_shifts_give_each_code_of_a_word_in_any_order(words: np.ndarray, order: list[int]):
    codes = by_shifts(words, tuple(order))
    assert codes.shape == (words.shape[0], 8 * words.shape[1])
    for (line, column), found in np.ndenumerate(codes):
        assert found == code(words[line, column // 8], column % 8, tuple(order))


@given(WORDS, st.permutations(range(8)))
def test_bytes_give_the_same_codes(words: np.ndarray, order: list[int]):
    places = tuple(order.index(element) for element in range(8))
    assert np.array_equal(by_bytes(words, places), by_shifts(words, tuple(order)))


@given(WORDS, st.permutations(range(8)))
def test_along_the_first_axis_they_are_what_the_transposed_words_give(words: np.ndarray, order: list[int]):
    places = tuple(order.index(element) for element in range(8))
    wanted = by_shifts(np.ascontiguousarray(words.T), tuple(order)).T
    assert np.array_equal(by_shifts(words, tuple(order), axis=0), wanted)
    assert np.array_equal(by_bytes(words, places, axis=0), wanted)


@given(WORDS)
def test_words_that_are_not_contiguous_are_read_as_well(words: np.ndarray):
    assert np.array_equal(by_bytes(words.T, IN_ORDER), by_shifts(np.ascontiguousarray(words.T)))


def test_both_of_awqs_orders_are_the_published_one():
    """AutoAWQ: AWQ_ORDER when packing, AWQ_REVERSE_ORDER when unpacking; one is the inverse of the other."""
    assert WRITTEN == (0, 2, 4, 6, 1, 3, 5, 7)
    assert tuple(WRITTEN[place] for place in READ) == IN_ORDER
