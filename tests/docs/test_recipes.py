"""docs/recipes.md names every field and every recipe, and each of its examples is planned."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from bundles import ASSETS
from qpack_packager.cli import main
from qpack_packager.recipe import SCHEMA, SHIPPED

from .pages import ROOT, read_page

PAGE = read_page("recipes.md")
EXAMPLES = re.findall(r"^\*\*(.*?)\.?\*\*.*?^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def rows(heading: str) -> dict[str, list[str]]:
    """The name in a row's first cell -> the other cells."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `([^`]+)` \|(.*)\|$", part, re.MULTILINE)
    return {name: [cell.strip() for cell in others.split("|")] for name, others in found}


def test_every_field_of_the_schema_is_told_with_its_flag_and_values():
    schema = json.loads((ROOT / "schemas" / "qpack_schemas" / SCHEMA).read_text(encoding="utf-8"))["properties"]
    fields = rows("Every field")
    assert fields.keys() == schema.keys()
    flags = {flag for parameter in main.commands["build"].params for flag in parameter.opts}
    for name, (flag, meaning) in fields.items():
        assert flag.strip("`") in flags
        allowed = schema[name].get("enum") or schema[name].get("additionalProperties", {}).get("enum", ())
        assert all(f"`{value}`" in meaning for value in allowed), name


def test_every_recipe_that_comes_with_qpack_is_told():
    assert rows("Those that come with qpack").keys() == {path.stem for path in SHIPPED.glob("*.yaml")}


@pytest.mark.parametrize("recipe", [pytest.param(recipe, id=title) for title, recipe in EXAMPLES])
def test_an_example_is_planned_as_it_says(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(recipe, encoding="utf-8")
    for name in ("text.txt", "held-out.txt"):
        shutil.copyfile(ASSETS / "tiny-qwen3" / "eval.txt", name)
    arguments = ["plan", str(ASSETS / "tiny-qwen3"), "--recipe", "recipe.yaml", "--format", "json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    plan = json.loads(result.output)
    if batch := re.search(r"^batch: (.*)$", recipe, re.MULTILINE):
        decode = {bucket["rows"] for bucket in plan["buckets"] if bucket["program"] == "decode"}
        assert decode == set(json.loads(batch[1]))
    if "gptq" in recipe:
        assert plan["quant"]["method"] == "gptq"


def test_there_are_examples():
    assert len(EXAMPLES) == PAGE.count("```yaml") == 5
