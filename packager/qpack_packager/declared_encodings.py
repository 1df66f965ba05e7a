"""What people say about encodings that no one could know from the bytes: `--encoding GLOB=NAME`."""

import codecs
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath

from qpack_schemas.errors import UsageError


@dataclass(frozen=True)
class DeclaredEncodings:
    """Pairs of (glob, codec) in the order they were given; the last glob that matches decides.

    A glob of N parts is compared with the last N parts of a path: `README*` with the name of a file alone."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, flags: Iterable[str]) -> "DeclaredEncodings":
        """Raises UsageError for a flag that is not GLOB=NAME or names no text encoding that Python has."""
        return cls(tuple(map(_parse, flags)))

    def of(self, path: PurePath) -> str | None:
        """The declared codec of a file, or None."""
        return next((codec for glob, codec in reversed(self.pairs) if _matches(path, glob)), None)


def text_encoding(name: str, flag: str) -> str:
    """Python's name of the codec `name`. Raises UsageError, naming `flag`, if it is none that turns bytes into text."""
    try:
        "".encode(name)  # unlike lookup, refuses rot13, hex and the like
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise UsageError(
            f"{name!r} is no text encoding",
            where=flag,
            remedy="use a name of Python's codecs, for example gb18030, cp950, cp932, euc_jp, cp949 or cp1252",
        ) from None


def _parse(flag: str) -> tuple[str, str]:
    glob, equals, name = flag.rpartition("=")
    if not (glob and equals and name):
        raise UsageError(
            f"{flag!r} is not GLOB=NAME", where="--encoding", remedy="for example --encoding 'README*=gb18030'"
        )
    return glob, text_encoding(name, f"--encoding {flag}")


def _matches(path: PurePath, glob: str) -> bool:
    parts = glob.count("/") + 1
    return fnmatchcase("/".join(path.parts[-parts:]), glob)
