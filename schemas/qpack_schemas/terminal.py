"""How text looks on a terminal: headings bold, verdicts in colour. Anywhere else it is the same text without that."""

import os
import re
from typing import TextIO

BOLD, RED, GREEN, YELLOW = "1", "1;31", "32", "33"  # parameters of SGR (ECMA-48, section 8.3.117)

# What stands out, wherever a report says it; the first that fits at a place. Below a heading lines are indented, by two
# columns or as the head of a table is.
_STANDS_OUT = re.compile(
    r"""
      (?P<bad>    ^(?:error:|missed:|FAILURE\b|graphable:\ no\b|The\ gate:\ missed|-.*) | (?<=\ )error:
                | (?<=\ )refused(?=\ |$) | (?<=\ )too\ big(?=\ ) )
    | (?P<good>   ^(?:ok\b|graphable:\ yes|The\ gate:\ passed|\+.*) | \[fixed\]$ )
    | (?P<so_so>  ^(?:note:|warning\b:?) | (?<=\ )warning: | \[fixable\]$ )
    | (?P<strong> ^\ +remedy: | ^\S.*:$ | ^\S.*(?=\n\ \ (?:\ {4}|\S)) )
    """,
    re.VERBOSE | re.MULTILINE,
)
_COLOURS = {"bad": RED, "good": GREEN, "so_so": YELLOW, "strong": BOLD}


def is_plain(stream: TextIO) -> bool:
    """Whether `stream` takes text alone: it is no terminal, or one that has no control sequences."""
    return not stream.isatty() or os.environ.get("TERM") == "dumb"


def painted(text: str, stream: TextIO) -> str:
    """`text` as `stream` should get it: as it is, unless a terminal shows colours and NO_COLOR (no-color.org) is unset
    or empty."""
    if is_plain(stream) or os.environ.get("NO_COLOR"):
        return text
    return _STANDS_OUT.sub(lambda found: f"\x1b[{_COLOURS[str(found.lastgroup)]}m{found[0]}\x1b[0m", text)
