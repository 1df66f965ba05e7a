"""Which of five CJK encodings a text is in, if the bytes say so beyond doubt.

gb18030, cp950, cp932, euc_jp and cp949 nearly never fail to decode, so decoding proves nothing. A reading is taken
only if it encodes to the same bytes, has no character that text does not have, parses as its kind, reads like its
language throughout, a detector ranks it first or abstains, and no rival reading comes near. What is no language but
has the structure of GB18030's four-byte characters is GB18030. Single-byte encodings are never guessed.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import chardet

from qpack_packager.textfix.report import Problem, Refused, preview
from qpack_packager.textfix.writing_systems import WRITING_SYSTEMS, Evidence, WritingSystem, weigh

MIN_GAIN = 10.0  # nats, four or five common characters
MIN_MEAN = 0.9  # nats a character; running text has 2 to 3, a wrong codec below 0
MIN_WORST = -1.0  # nats a character; where a byte was lost, what follows is noise
MIN_RUN = 1.4  # characters; accented letters read as CJK stand alone between ASCII letters
MIN_DISTINCT = 4
MIN_LEAD = 8.0  # nats over every rival
MIN_LEAD_UNVOTED, MIN_DISTINCT_UNVOTED = 24.0, 8  # where the detector names none of the five
VOTE_BYTES = 200_000  # bytes that the detector looks at; what a reading must keep, all bytes must keep
MIN_MEAN_FOR_SITE = 1.8  # nats a character, for a text in an encoding of the site that is too short to stand alone

MIN_FOUR_BYTES = 16  # different characters

_FOUR_BYTES = re.compile(rb"[\x81-\xfe][0-9][\x81-\xfe][0-9]")
_HIGH_LINE = re.compile(rb"[^\n]*[\x80-\xff][^\n]*\n?")
_HIGH_RUN = re.compile(r"[^\x00-\x7f]+")
# In the Japanese sets the yen sign and the backslash are one byte; before a digit either may be meant.
_YEN = re.compile(r"\\\d")
# What is left of a character whose first byte was lost, where second bytes may be ASCII: one letter stuck to CJK text.
_LEFT_OVER = re.compile(r"""(?<=[^\x00-\u2e7f])[@-~](?=[^\x00-\x7f]|["'\r\n<{]|\Z)""")
_ASCII_SECOND_BYTES = ("cp950", "cp932")


@dataclass(frozen=True)
class Reading:
    """The text of the bytes in one codec, with what speaks for it and whether it may be used at all."""

    system: WritingSystem
    text: str
    evidence: Evidence

    @property
    def plausible(self) -> bool:
        evidence = self.evidence
        return (
            evidence.foreign == 0
            and evidence.mean >= MIN_MEAN
            and evidence.worst >= MIN_WORST
            and evidence.run >= MIN_RUN
        )

    @property
    def sufficient(self) -> bool:
        return self.plausible and self.evidence.gain >= MIN_GAIN and self.evidence.distinct >= MIN_DISTINCT


def infer(data: bytes, parses: Callable[[str], bool], legacy: Sequence[str]) -> tuple[str, str]:
    """(text, codec) of bytes that are not UTF-8. Raises Refused, with the candidates, if that is not certain."""
    readings = [reading for system in WRITING_SYSTEMS if (reading := _read(data, system))]
    readings.sort(key=lambda reading: reading.evidence.gain, reverse=True)
    usable = [reading for reading in readings if _unequivocal(data, reading) and parses(reading.text)]
    chosen = (
        _settled_by_site(usable, readings, legacy)
        or _certain(data, usable, readings)
        or _known_by_four_bytes(data, usable, readings)
    )
    if chosen is None:
        raise Refused(_undecided(data, readings))
    return chosen.text, chosen.system.codec


def _read(data: bytes, system: WritingSystem) -> Reading | None:
    """Strict in both directions, and only characters that are assigned, public and no controls."""
    try:
        text = data.decode(system.codec)
        if text.encode(system.codec) != data:
            return None
    except UnicodeError:
        return None
    if any(unicodedata.category(char) in ("Cn", "Co", "Cc", "Cs") for char in set(text) - set("\t\n\r\f")):
        return None
    return Reading(system, text, weigh(text, system))


def _unequivocal(data: bytes, reading: Reading) -> bool:
    """Whether nothing in the text is open to a second reading, or a trace of damage. Codecs that go by the same name
    differ: cp932 and Shift_JIS in the wave dash, cp950 and Big5 in the bullet."""
    if reading.system.codec in ("cp932", "euc_jp") and _YEN.search(reading.text):
        return False
    if _has_ascii_second_bytes(reading) and _LEFT_OVER.search(reading.text):
        return False
    for sibling in reading.system.siblings:
        try:
            if data.decode(sibling) != reading.text:
                return False
        except UnicodeDecodeError:
            continue
    return True


def _certain(data: bytes, usable: list[Reading], readings: list[Reading]) -> Reading | None:
    if not usable or not usable[0].sufficient:
        return None
    best = usable[0]
    for rival in readings:  # those that do not parse count as well
        near = rival.evidence.gain > best.evidence.gain - MIN_LEAD
        if rival.text != best.text and (near or (rival in usable and rival.sufficient)):
            return None
    detected = _detected(data)
    if detected is None:  # it abstains, for instance on a few words of katakana: no vote, but no other vote either
        others = [rival.evidence.gain for rival in readings if rival.text != best.text]
        far = all(best.evidence.gain - gain >= MIN_LEAD_UNVOTED for gain in others)
        return best if far and best.evidence.distinct >= MIN_DISTINCT_UNVOTED else None
    voted = {reading.text for reading in readings if detected in reading.system.detected}  # codecs may read the same
    return best if best.text in voted else None


def _known_by_four_bytes(data: bytes, usable: list[Reading], readings: list[Reading]) -> Reading | None:
    """GB18030 writes what GBK lacks in four bytes, every other one a digit. A tokenizer's byte alphabet (Ġ, Ċ, ¡) is
    such text: no language, but a structure that no other encoding has by chance."""
    found = _FOUR_BYTES.findall(data)
    high = sum(byte >= 0x80 for byte in data)
    if len(set(found)) < MIN_FOUR_BYTES or 2 * len(found) < 0.9 * high:
        return None
    return usable[0] if usable and {reading.system.codec for reading in readings} == {"gb18030"} else None


def _settled_by_site(usable: list[Reading], readings: list[Reading], legacy: Sequence[str]) -> Reading | None:
    """The one reading in the site's encodings that reads like its language, unless another one reads better."""
    own = [reading for reading in usable if reading.system.codec in legacy and reading.plausible]
    own = [reading for reading in own if reading.evidence.mean >= MIN_MEAN_FOR_SITE]
    if len(own) != 1 or any(rival.evidence.gain > own[0].evidence.gain for rival in readings):
        return None
    return own[0]


def _has_ascii_second_bytes(reading: Reading) -> bool:
    """Simplified Chinese stays within GB 2312, which has none."""
    return reading.system.codec in _ASCII_SECOND_BYTES or reading.system.standard == "big5"


def _detected(data: bytes) -> str | None:
    """The CJK encoding that chardet ranks first among those. Its confidence says nothing here and is not used. Lines
    of pure ASCII tell it nothing either, and left out they cannot push the others beyond what it looks at."""
    lines = b"".join(_HIGH_LINE.findall(data))[:VOTE_BYTES]
    ranked = chardet.detect_all(lines, ignore_threshold=True, max_bytes=len(lines))
    names = [(entry["encoding"] or "").lower() for entry in ranked]
    return next((name for name in names if any(name in system.detected for system in WRITING_SYSTEMS)), None)


def _undecided(data: bytes, readings: list[Reading]) -> Problem:
    """What a person needs to decide: what each encoding would read, and the flag."""
    offset = next(index for index, byte in enumerate(data) if byte >= 0x80)
    line, column = data.count(b"\n", 0, offset) + 1, offset - data.rfind(b"\n", 0, offset)
    shown = {reading.system.codec: reading.text for reading in readings}
    # One of many single-byte encodings, for the look of it.
    try:
        shown["cp1252"] = data.decode("cp1252")
    except UnicodeDecodeError:
        shown["latin-1"] = data.decode("latin-1")
    previews = [f"{codec}: {_first_high(text)}" for codec, text in shown.items()]
    message = (
        f"is not UTF-8 (byte 0x{data[offset]:02x} at offset {offset}), and its encoding is not certain; candidates are "
        + "; ".join(previews)
        + "; name the right one with --encoding GLOB=NAME"
    )
    return Problem("QE003", "error", False, message, line, column, offset, preview=previews[0])


def _first_high(text: str) -> str:
    found = _HIGH_RUN.search(text)
    return repr(preview(text, found.start() if found else 0))
