"""docs/troubleshooting.md quotes what the programs say, and leaves no kind of error out."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from qpack_runtime.cuda.doctor import CAPTURE_FAILURES
from qpack_runtime.cuda.driver import REMEDIES
from qpack_schemas import errors

from .pages import ROOT, prose_of, read_page

PAGE = read_page("troubleshooting.md")
ROOMS = [ROOT / room / f"qpack_{room}" for room in ("packager", "schemas", "delivery", "runtime")]
FILES = [file for room in ROOMS for file in sorted(room.rglob("*.py"))]
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.QpackError)]
# Places that raise only what another page tells in full, or what their callers give another form.
ELSEWHERE = {
    "chat.py": "fields of a message; the answer names the field",
    "json_schema.py": "docs/serving.md",
    "recipe.py": "docs/recipes.md",
    "program.py": "click's own usage errors",
    "cli_program.py": "click's own usage errors",
}


@cache
def strings_of(file: Path) -> tuple[str, ...]:
    """Every text of a file but its docstrings, with … where something is put in."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree)
                  if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    return tuple(text for node in ast.walk(tree) if id(node) not in docstrings and (text := _text(node)))


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)  # type: ignore[misc]
    return ""


def says(file: Path, quote: str) -> bool:
    pattern = r"[^\n]*".join(map(re.escape, quote.split("…")))
    return any(re.search(pattern, text) for text in strings_of(file))


def quotes() -> Iterator[str]:
    """The code spans in the column `it says` of every table."""
    column: int | None = None
    for line in prose_of(PAGE).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if "it says" in cells:
            column = cells.index("it says")
        elif not cells:
            column = None
        elif column is not None:
            yield from re.findall(r"`([^`]+)`", cells[column])


QUOTES = sorted(set(quotes()))


@pytest.mark.parametrize("quote", QUOTES)
def test_what_the_page_quotes_is_said_somewhere(quote: str):
    assert any(says(file, quote) for file in FILES)


def raises(file: Path) -> bool:
    names = {kind.__name__ for kind in KINDS} - {"QpackError"}
    called = (node.func for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id in names for function in called)


@pytest.mark.parametrize("file", [file for file in FILES if raises(file)], ids=lambda file: str(file.relative_to(ROOT)))
def test_every_place_that_refuses_something_is_found_on_the_page(file: Path):
    assert file.name in ELSEWHERE or any(says(file, quote) for quote in QUOTES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_error_has_its_exit_code_in_the_first_table(kind: type[errors.QpackError]):
    if kind not in (errors.QpackError, errors.BundleError):  # which nobody is told of by name
        assert re.search(rf"^\| {kind.exit_code} \| `{kind.__name__}` \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("code", REMEDIES)
def test_every_driver_error_that_has_a_remedy_has_a_row(code: int):
    assert re.search(rf"^\| [^|]*\({code}\)[^|]* \| [A-Z_, ]+ \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("shown", [shown for shown, *_ in CAPTURE_FAILURES])
def test_every_way_in_which_graphs_fail_is_on_the_page(shown: str):
    assert f"`{shown}`" in PAGE


def test_every_phase_of_a_boot_is_on_the_page():
    phases = {phase for file in FILES for phase in re.findall(r'begin\("(\w+)"\)', file.read_text(encoding="utf-8"))}
    assert {"verify", "graphs"} <= phases
    table = PAGE.partition("## A boot takes long")[2].partition("\n## ")[0]
    assert phases == set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
