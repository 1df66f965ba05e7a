"""Stop strings: what comes through is the text before the first of them, however the text is cut."""

from hypothesis import given
from hypothesis import strategies as st

from qpack_runtime.serve.text.stop_strings import StopStrings

TEXT = st.text("ab\n。", max_size=30)
STOPS = st.lists(st.text("ab\n。", min_size=1, max_size=4), max_size=4)


def cut(text: str, stops: list[str]) -> str:
    """The text before the first stop string, found in the whole of it."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


@given(pieces=st.lists(TEXT, max_size=12), stops=STOPS)
def test_what_comes_through_is_the_text_before_the_first_stop_string(pieces: list[str], stops: list[str]):
    text, stop = "", StopStrings(stops)
    for piece in pieces:
        text += stop.push(piece)
    text += stop.finish()
    assert text == cut("".join(pieces), stops)
    assert stop.found == any(one in "".join(pieces) for one in stops)


@given(pieces=st.lists(TEXT, max_size=12), stops=STOPS)
def test_nothing_is_held_back_that_no_stop_string_can_begin_with(pieces: list[str], stops: list[str]):
    came, let_through, stop = "", "", StopStrings(stops)
    for piece in pieces:
        came, let_through = came + piece, let_through + stop.push(piece)
        if not stop.found:
            held = came[len(let_through) :]
            assert held == "" or any(one.startswith(held) and one != held for one in stops)
