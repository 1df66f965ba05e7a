"""Text for a page: what a bundle says is shown as text, whatever it says, and cut where there is no room for it."""

from unicodedata import east_asian_width

from markupsafe import Markup, escape

from qpack_packager.commands.typeset import bytes_text


def visible(text: str) -> str:
    """`text` with every character that doesn't print, such as a newline or U+202E, as its escape: \\u202e."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def escaped(text: str) -> Markup:
    """`text` as content of an element or of an attribute; what is markup stays as it is."""
    return text if isinstance(text, Markup) else escape(visible(text))


def width(text: str) -> float:
    """How wide `text` is in a sans-serif font, in its size: rather too much than too little."""
    return sum(map(_width, text))


def _width(char: str) -> float:
    if east_asian_width(char) in "WF":
        return 1.0
    if char in " .,:;'|!()[]/iljtfrI":
        return 0.4
    if char in "mwMW@%…" or not char.isascii():
        return 1.0
    return 0.7 if char.isupper() else 0.58


def shortened(text: str, most: float) -> str:
    """`text` no wider than `most`; what is too much is left out of its middle, since names differ at their ends."""
    text = visible(text)
    if width(text) <= most:
        return text
    head, tail = text[: len(text) // 2], text[len(text) // 2 :]
    while (head or tail) and width(f"{head}…{tail}") > most:
        if len(head) >= len(tail):
            head = head[:-1]
        else:
            tail = tail[1:]
    return f"{head}…{tail}"


def short_bytes(size: float) -> str:
    """A round number of bytes, as along an axis: `5 kB`."""
    return bytes_text(round(size)).replace(".0 ", " ")
