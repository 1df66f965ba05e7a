"""The rules that `qpack check` itself adds to those of textfix: QE06x, what can be done with the file as a whole."""

from qpack_packager.textfix.rules import RULES as TEXT_RULES
from qpack_packager.textfix.rules import Rule

UNREADABLE = Rule(
    "QE060",
    "cannot be read",
    "The file or directory could not be read, so nothing is known about it. Its permissions, a broken link or the disk "
    "are to blame; the message has the system's reason.",
)
NOT_WRITTEN = Rule(
    "QE061",
    "repaired, but not written",
    "The repair is known, but the file was left as it was: it is a link, or may not be written. Repair the file that "
    "the link leads to, or change the permissions.",
)
NOT_ASCII = Rule(
    "QE062",
    "JSON that is not ASCII",
    "Asked for by --ascii: readers that use the locale's codec instead of UTF-8 show wrong characters or fail. "
    "`qpack check --fix --ascii` writes these characters as \\u escapes, which every JSON reader understands alike.",
)

RULES: dict[str, Rule] = {**TEXT_RULES, **{rule.id: rule for rule in (UNREADABLE, NOT_WRITTEN, NOT_ASCII)}}
