"""How reports look: decimal units, columns that line up, bars of what takes the space. ASCII, 80 columns."""

import textwrap
from collections.abc import Collection, Sequence

WIDTH = 80
LABEL = 9  # columns of a label that has a text beside it, if it isn't longer


def bytes_text(count: int) -> str:
    """kB, MB and GB are powers of 1000, as in data sheets."""
    if count < 1000:
        return f"{count} B"
    for unit, size in (("kB", 10**3), ("MB", 10**6)):
        if count < 999.95 * size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 10**9:,.2f} GB"


def counted(count: int, thing: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def percent(share: float) -> str:
    return "<0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def columns(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """Rows of cells as indented lines; the columns in `right` are aligned on the right, the others on the left."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


def wrapped(label: str, text: str) -> list[str]:
    """An indented label with a text beside it, whose further lines stand below its first."""
    first = f"  {label:{LABEL}}  "
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False)


def bar(part: int, whole: int, mark: str = "#") -> str:
    """The share of `part` in at most 24 marks; anything above nothing is seen."""
    return mark * (max(1, round(24 * part / whole)) if part else 0)
