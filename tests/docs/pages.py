"""The pages that a reader follows, cut into blocks and command lines."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """`language` is what stands behind the fence. "sh" and "console" are run, of the second only what stands
    behind a prompt."""

    language: str
    text: str


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks_of(text: str) -> list[Block]:
    found = FENCE.finditer(text)
    return [Block(one[2], re.sub(rf"^{one[1]}", "", one[3], flags=re.MULTILINE)) for one in found]


def prose_of(text: str) -> str:
    return FENCE.sub("", text)


def commands_of(block: Block) -> Iterator[str]:
    """The command lines of a block that is run, each with the lines that it goes on with: behind a backslash, or up to
    the end of a here-document."""
    lines = iter(block.text.splitlines())
    for line in lines:
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        elif not line.strip() or line.startswith("#"):
            continue
        while line.endswith("\\"):
            line = line.removesuffix("\\") + next(lines).lstrip()
        if document := re.search(r"<<-?'?(\w+)'?", line):
            for more in lines:
                line += f"\n{more}"
                if more.strip() == document[1]:
                    break
        yield line
