"""How likely a text is as Chinese, Japanese or Korean: the evidence that decides between the five CJK codecs.

Each codec gets a model of one character at a time. Characters fall into classes: common, more, marks, kana, level 1,
level 2, other. A class has a share of running text, spread evenly over its members. The *gain* of a character is the
logarithm of its probability over that of its bytes as noise, in nats: about +3 for a common character, below 0 for one
that text rarely has. Bytes read in the wrong codec come out below 0 on average, whatever language they are.
"""

import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import sub

from qpack_packager.textfix import common_characters as common

_NOISE = math.log(128)  # nats of a byte above 0x7F that says nothing
_OTHER = math.log(1e-8)
_MARKS = frozenset(
    "\u3000\u3007\u3001\u3002\uff0c\uff0e\uff1a\uff1b\uff1f\uff01\u300a\u300b\u3008\u3009\u300c\u300d\u300e\u300f\u3010\u3011"
    "\u201c\u201d\u2018\u2019\uff08\uff09\u2014\u2026\uff5e\u301c\u00b7\u30fb\u30fc\u3014\u3015\u2015\u2022\u2500\uff05"
    "\uff0f\uff0d\uff0b\u2192\u203b\u25cb\u25cf\u3005\u25a0\u25c6\u2605\u00d7\u00b0\u2103\ufe41\ufe42\u2160\u2161\u2162\u301d"
    "\u301f\uff1d\u25a1\u25b2\u2606\u25b3\u25ce\uff1c\uff1e\uff3b\uff3d\uff5b\uff5d\uff06\uff20\u2190\u2191\u2193\u2264\u2265"
) | {
    chr(code)
    for start, end in ((0xFF10, 0xFF1A), (0xFF21, 0xFF3B), (0xFF41, 0xFF5B), (0x2460, 0x2474))
    for code in range(start, end)
}
_KANA = frozenset(chr(code) for start, end in ((0x3041, 0x3094), (0x30A1, 0x30F7)) for code in range(start, end))
_EMOJI = re.compile("[\u2600-\u27bf\ufe0f\u200d\U0001f300-\U0001faff]")
_RUN = re.compile(r"[^\x00-\x7f]+")


@dataclass(frozen=True)
class WritingSystem:
    """A codec, the codecs that read the same bytes as other characters, what a detector calls it, and its text.

    `standard` is the codec of the national character set, whose rows before `level_2` (lead byte, as in EUC or Big5)
    hold the characters of everyday use. `shares` are the parts of running text in common, more, kana, level 1, level
    2; the rest are marks."""

    codec: str
    siblings: tuple[str, ...]
    detected: frozenset[str]
    standard: str
    level_2: int
    common: frozenset[str]
    more: frozenset[str]
    shares: tuple[float, float, float, float, float]
    sizes: tuple[int, int]

    @cached_property
    def _classes(self) -> list[tuple[frozenset[str], float]]:
        in_common, in_more, in_kana, _, _ = self.shares
        marks = 1 - sum(self.shares)
        classes = [(self.common, in_common), (self.more - self.common, in_more), (_KANA, in_kana), (_MARKS, marks)]
        return [(members, math.log(share / len(members))) for members, share in classes if members and share]

    def gain(self, char: str) -> float:
        """Nats that a character speaks for this reading of its bytes; never above 0 for one outside the standard."""
        noise = _NOISE * len(char.encode(self.codec))
        for members, log_probability in self._classes:
            if char in members:
                return noise + log_probability
        if _EMOJI.match(char):
            return 0.0
        return min(0.0, noise + self._log_uncommon(char))

    def _log_uncommon(self, char: str) -> float:
        level = self.level(char)
        if level is None:
            return _OTHER
        return math.log(self.shares[2 + level] / self.sizes[level - 1])

    def level(self, char: str) -> int | None:
        """1 or 2 for a letter of the national standard, None for all else."""
        try:
            raw = char.encode(self.standard)
        except UnicodeEncodeError:
            return None
        if len(raw) != 2 or unicodedata.category(char) != "Lo" or "\uff61" <= char <= "\uff9f":
            return None
        return 1 if raw[0] < self.level_2 else 2

    def foreign(self, char: str) -> bool:
        """Whether running text does not have the character at all: no everyday letter, mark or emoji."""
        known = any(char in members for members, _ in self._classes) or _EMOJI.match(char)
        return not known and self.level(char) is None


@dataclass(frozen=True)
class Evidence:
    """What a text says for its reading. `gain` in nats over all characters outside ASCII, `mean` per character;
    `worst` is the mean of the worst stretch of STRETCH characters in a row; `run` is the mean length of such rows;
    `foreign` counts characters that text does not have."""

    gain: float
    mean: float
    worst: float
    run: float
    distinct: int
    foreign: int


STRETCH = 6


def weigh(text: str, system: WritingSystem) -> Evidence:
    """The evidence of a text that `system.codec` can encode and that has a character outside ASCII."""
    runs = _RUN.findall(text)
    counts = Counter("".join(runs))
    gains = {char: system.gain(char) for char in counts}
    total, gain = counts.total(), sum(gains[char] * count for char, count in counts.items())
    foreign = sum(count for char, count in counts.items() if system.foreign(char))
    return Evidence(gain, gain / total, _worst_stretch(runs, gains), total / len(runs), len(counts), foreign)


def _worst_stretch(runs: list[str], gains: dict[str, float]) -> float:
    worst = math.inf
    for run in runs:
        sums = list(accumulate(map(gains.__getitem__, run), initial=0.0))
        worst = min(worst, min(map(sub, sums[min(STRETCH, len(run)) :], sums)) / STRETCH)
    return worst


# Shares are round numbers; what they decide does not depend on their second digit.
WRITING_SYSTEMS = (
    WritingSystem(
        "gb18030", (), frozenset({"gb18030", "gbk", "gb2312"}), "gb2312", 0xD8,
        common.SIMPLIFIED, common.SIMPLIFIED_MORE, (0.62, 0.16, 0.0005, 0.09, 0.01), (3755, 3008),
    ),
    # GBK has the traditional characters as well, beyond the rows of GB 2312.
    WritingSystem(
        "gb18030", (), frozenset({"gb18030", "gbk"}), "big5", 0xC9,
        common.TRADITIONAL, common.TRADITIONAL_MORE, (0.62, 0.16, 0.0005, 0.09, 0.01), (5401, 7652),
    ),
    WritingSystem(
        "cp950", ("big5",), frozenset({"big5", "cp950", "big5-hkscs", "big5hkscs"}), "big5", 0xC9,
        common.TRADITIONAL, common.TRADITIONAL_MORE, (0.62, 0.16, 0.0005, 0.09, 0.01), (5401, 7652),
    ),
    WritingSystem(
        "cp932", ("shift_jis",), frozenset({"cp932", "shift_jis", "shift-jis", "shift_jis_2004", "shift_jisx0213"}),
        "euc_jp", 0xD0, common.KANJI, common.KANJI_MORE, (0.22, 0.05, 0.55, 0.06, 0.01), (2965, 3390),
    ),
    WritingSystem(
        "euc_jp", (), frozenset({"euc_jp", "euc-jp", "euc_jis_2004", "euc-jis-2004", "euc_jisx0213"}),
        "euc_jp", 0xD0, common.KANJI, common.KANJI_MORE, (0.22, 0.05, 0.55, 0.06, 0.01), (2965, 3390),
    ),
    WritingSystem(
        "cp949", (), frozenset({"cp949", "euc-kr", "euc_kr", "uhc"}), "euc_kr", 0xC9,
        common.HANGUL, frozenset(), (0.78, 0.0, 0.0005, 0.17, 0.005), (2350, 4888),
    ),
)  # fmt: skip
