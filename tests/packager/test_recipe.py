"""A recipe says what the flags say, and flags win."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bundles import ASSETS
from qpack_packager.cli import main
from qpack_packager.recipe import SHIPPED, read_recipe

TINY = str(ASSETS / "tiny-qwen3")


def plan(tmp_path: Path, recipe: str | bytes, *flags: str) -> Result:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(recipe if isinstance(recipe, bytes) else recipe.encode("utf-8"))
    return CliRunner().invoke(main, ["plan", TINY, "--recipe", str(path), "--format", "json", *flags])


def test_a_recipe_says_what_flags_say(tmp_path: Path):
    recipe = "# for the shop floor\nbatch: [1, 3]\ncontext: [100]\nprefill: [7]\nslots: 5\ndtype: float32\n"
    recipe += "lm_head: int4\nembedding: bf16\n"
    by_recipe = plan(tmp_path, recipe)
    by_flags = plan(
        tmp_path, "", "--batch", "1,3", "--context", "100", "--prefill", "7", "--slots", "5", "--dtype", "float32",
        "--lm-head", "int4", "--embedding", "bf16",
    )  # fmt: skip
    assert by_recipe.exit_code == 0, by_recipe.output
    assert by_recipe.output == by_flags.output
    facts = json.loads(by_recipe.output)
    assert (facts["slots"], facts["quant"]["lm_head"], facts["quant"]["embedding"]) == (5, "int4", "dense")


def test_flags_win(tmp_path: Path):
    facts = json.loads(plan(tmp_path, "batch: [1, 2]\nslots: 7\n", "--slots", "2").output)
    assert facts["slots"] == 2
    assert {bucket["rows"] for bucket in facts["buckets"] if bucket["program"] == "decode"} == {1, 2}


def test_the_flag_rtn_wins_over_a_recipes_calibration(tmp_path: Path):
    recipe = "method: gptq\ncalibration: text.txt\nmax_fallbacks: 2\n"
    by_flag = plan(tmp_path, recipe, "--method", "rtn")
    assert by_flag.exit_code == 0, by_flag.stderr
    assert by_flag.stdout == plan(tmp_path, "").stdout
    assert json.loads(plan(tmp_path, recipe).stdout)["quant"]["method"] == "gptq"
    asked_for = plan(tmp_path, recipe, "--method", "rtn", "--calibration", "mine.txt")
    assert asked_for.exit_code == 2
    assert "go together" in asked_for.stderr
    assert plan(tmp_path, "method: rtn\ncalibration: text.txt\n").exit_code == 2  # the recipe contradicts itself


@pytest.mark.parametrize(("written", "number"), [("1e-9", 1e-9), ("5E3", 5000.0), (".5e-2", 0.005), ("1.0e-9", 1e-9)])
def test_a_number_with_an_exponent_is_one(written: str, number: float, tmp_path: Path):
    """To YAML 1.1 some of these are strings."""
    (tmp_path / "recipe.yaml").write_text(f"max_kl: {written}\n", encoding="utf-8")
    assert read_recipe(tmp_path / "recipe.yaml")["max_kl"] == number


def test_a_recipe_declares_encodings(tmp_path: Path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("encodings:\n  'NOTICE*': cp1252\nlegacy_encodings: [gb18030]\n", encoding="utf-8")
    model = tmp_path / "model"
    model.mkdir()
    for path in (ASSETS / "tiny-qwen3").iterdir():
        (model / path.name).symlink_to(path)
    (model / "NOTICE").write_bytes("Größe".encode("cp1252"))
    arguments = ["build", str(model), "-o", str(tmp_path / "bundle"), "--recipe", str(recipe)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "bundle" / "LICENSES" / "NOTICE").read_text(encoding="utf-8") == "Größe"


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("bacth: [1]", "bacth"),
        ("batch: many", "batch"),
        ("batch: [0]", "/batch/0"),
        ("- 1", "recipe"),
        ("lm_head: int2", "lm_head"),
        ("embedding: int4", "embedding"),
        ("slots: 1\nslots: 2\n", "slots"),
        ("batch: [1", "line"),
        ("max_kl: 1e", "max_kl"),
        (b"\xff\xfe\x00\x00\x01", "recipe"),
    ],
)
def test_what_is_wrong_in_a_recipe_is_named(recipe: str | bytes, says: str, tmp_path: Path):
    result = plan(tmp_path, recipe)
    assert result.exit_code == 1, result.output
    assert says in result.stderr
    assert "Traceback" not in result.output
    assert json.loads(result.stdout)["error"]["exit_code"] == 1


@pytest.mark.parametrize("recipe", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_of_qpack_goes_by_its_name_and_fits_its_family(recipe: Path):
    model = ASSETS / ("tiny-qwen3_5" if recipe.stem.startswith("qwen3.5") else "tiny-qwen3")
    command = ["plan", str(model), "--format", "json"]
    by_name = CliRunner().invoke(main, [*command, "--recipe", recipe.stem])
    assert by_name.exit_code == 0, by_name.output
    assert by_name.output == CliRunner().invoke(main, [*command, "--recipe", str(recipe)]).output
    assert by_name.output != CliRunner().invoke(main, command).output
    assert "benchmarks/forms.py" in recipe.read_text(encoding="utf-8"), "no measurement chose it"


@pytest.mark.parametrize("as_json", [(), ("--format", "json"), ("--format=json",)])
def test_a_name_that_is_no_recipe_is_answered_with_those_there_are(as_json: tuple[str, ...]):
    """Before --recipe and behind it."""
    for flags in (("--recipe", "qwen3-smal", *as_json), (*as_json, "--recipe", "qwen3-smal")):
        result = CliRunner().invoke(main, ["plan", TINY, *flags])
        assert result.exit_code == 2
        assert "fewest-bytes, qwen3-small, qwen3.5-small" in result.stderr
        assert bool(result.stdout) is bool(as_json)
        if as_json:
            assert "qwen3-small" in json.loads(result.stdout)["error"]["remedy"]
