"""Stop strings in a text that comes in pieces, wherever the pieces are cut."""

from collections.abc import Sequence


class StopStrings:
    """Lets text through until one of the strings begins; neither it nor anything behind it is ever let through."""

    def __init__(self, strings: Sequence[str]):
        self._strings = [string for string in strings if string]
        self._held = ""  # the longest end of the text that a string could begin with
        self.found = False

    def push(self, text: str) -> str:
        """What is certain to belong to the answer. Where several strings begin, the first in the text counts."""
        if not self._strings or self.found:
            return "" if self.found else text
        text = self._held + text
        if places := [place for string in self._strings if (place := text.find(string)) >= 0]:
            self.found, self._held = True, ""
            return text[: min(places)]
        keep = max(self._overlap(text, string) for string in self._strings)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, string: str) -> int:
        """Characters at the end of `text` that `string` begins with."""
        most = min(len(text), len(string) - 1)
        return next((size for size in range(most, 0, -1) if text.endswith(string[:size])), 0)
