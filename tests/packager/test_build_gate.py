"""A bundle that misses its gate is not written; what is measured of one that passes is no part of it."""

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bundles import ASSETS
from qpack_packager import build as building
from qpack_packager.cli import main
from qpack_packager.evaluate import build_gate
from qpack_packager.weights.make import Maker
from qpack_schemas.bundle import open_bundle

MODEL = ASSETS / "tiny-qwen3"
FLAGS = ("--batch", "1,4", "--context", "64", "--prefill", "16")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "held out.txt"
    path.write_text((MODEL / "eval.txt").read_text(encoding="utf-8")[:3000], encoding="utf-8")
    return path


def build(output: Path, *flags: str | Path) -> Result:
    return CliRunner().invoke(main, ["build", str(MODEL), "-o", str(output), *FLAGS, *map(str, flags)])


def test_a_bundle_that_passes_says_so_and_its_numbers_lie_beside_it(tmp_path: Path, text: Path):
    result = build(tmp_path / "bundle", "--eval", text, "--max-ppl-ratio", "1.1", "--max-kl", "0.1")
    assert result.exit_code == 0, result.output
    bundle = open_bundle(tmp_path / "bundle")
    said = bundle.manifest.get("quality")
    assert said
    measured = json.loads((tmp_path / "bundle" / "quality.json").read_text(encoding="utf-8"))
    assert said["passed"] is True
    assert said["gate"] == {"max_ppl_ratio": 1.1, "max_kl": 0.1}
    assert (said["text_sha256"], said["tokens"]) == (measured["text_sha256"], measured["tokens"])
    assert 0 < measured["kl_mean"] < 0.1
    page = (tmp_path / "bundle" / "quality.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert ".partial" not in page
    assert str(tmp_path) not in page
    assert not {"quality.json", "quality.html"} & {entry["path"] for entry in bundle.manifest["files"]}
    for name in ("quality.json", "quality.html"):
        (tmp_path / "bundle" / name).unlink()
    assert open_bundle(tmp_path / "bundle").bundle_id == bundle.bundle_id


@pytest.mark.parametrize(("flag", "limit"), [("--max-kl", "0.0001"), ("--max-ppl-ratio", "0.9")])
def test_a_bundle_that_misses_its_gate_leaves_nothing(flag: str, limit: str, tmp_path: Path, text: Path):
    result = build(tmp_path / "bundle", "--eval", text, flag, limit)
    assert result.exit_code == 3
    assert "missed its gate" in result.stderr
    assert f"the gate allows {limit}" in result.stderr
    assert "--keep-failed" in result.stderr
    assert os.listdir(tmp_path) == []


def test_machines_are_told_what_missed_and_by_how_much(tmp_path: Path, text: Path):
    result = build(
        tmp_path / "bundle", "--eval", text, "--max-kl", "1e-7", "--max-ppl-ratio", "0.9", "--format", "json"
    )
    facts = json.loads(result.stdout)["error"]
    assert facts["exit_code"] == result.exit_code == 3
    told = [finding["message"] for finding in facts["findings"]]
    assert [line.strip() for line in result.stderr.splitlines() if "the gate allows" in line] == told
    assert ["mean KL" in line for line in told].count(True) == 1
    assert all(re.search(r" is [\d.]+(e-\d+)? \+- [\d.]+, the gate allows [\d.e-]+$", line) for line in told)


def test_it_is_kept_on_request_and_says_that_it_missed(tmp_path: Path, text: Path):
    result = build(tmp_path / "bundle", "--eval", text, "--max-kl", "0.0001", "--keep-failed")
    assert result.exit_code == 3
    assert os.listdir(tmp_path) == ["bundle"]
    said = open_bundle(tmp_path / "bundle").manifest.get("quality")
    assert said
    assert said["passed"] is False
    assert "missed" in CliRunner().invoke(main, ["inspect", str(tmp_path / "bundle")]).stdout


def test_without_limits_it_is_measured_and_the_manifest_is_as_without(tmp_path: Path, text: Path):
    assert build(tmp_path / "measured", "--eval", text).exit_code == 0
    assert build(tmp_path / "plain").exit_code == 0
    assert (tmp_path / "measured" / "quality.json").exists()
    assert open_bundle(tmp_path / "measured").bundle_id == open_bundle(tmp_path / "plain").bundle_id


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--max-kl", "0.1"), "a gate needs a text"),
        (("--keep-failed",), "a gate needs a text"),
        (("--eval", "absent.txt"), "absent.txt: is no file"),
        (("--eval", str(MODEL / "eval.txt"), "--max-kl", "-1"), "--max-kl -1"),
        (("--method", "gptq"), "--method gptq and --calibration FILE go together"),
        (("--calibration", "x.txt"), "--method gptq and --calibration FILE go together"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(flags: tuple[str, ...], says: str, tmp_path: Path):
    result = build(tmp_path / "bundle", *flags)
    assert result.exit_code == 2
    assert says in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_recipe_sets_the_gate(tmp_path: Path, text: Path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"eval: {json.dumps(str(text))}\nmax_kl: 0.0001\n", encoding="utf-8")
    assert build(tmp_path / "out" / "bundle", "--recipe", recipe).exit_code == 3
    assert build(tmp_path / "out" / "bundle", "--recipe", recipe, "--max-kl", "0.1").exit_code == 0


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"", "gives 0 tokens"), (b"a", "gives 1 tokens"), ("été".encode("latin-1") * 9, "encoding is not certain")],
)
def test_a_text_that_can_not_be_measured_on_is_refused_before_any_weight_is_made(
    data: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "eval.txt").write_bytes(data)
    monkeypatch.setattr(building, "add_weights", lambda *given: pytest.fail("weights are made"))
    result = build(tmp_path / "out" / "bundle", "--eval", tmp_path / "eval.txt")
    assert result.exit_code == 1, result.output
    assert says in result.stderr
    assert os.listdir(tmp_path / "out") == []


def test_room_for_the_comparison_is_asked_for_before_any_weight_is_made(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of the folder for temporary files, which may be on another disk than the bundle."""
    usage, elsewhere = shutil.disk_usage(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage._replace(free=1000 if path == str(elsewhere) else usage.free)
    )
    monkeypatch.setattr(building, "add_weights", lambda *given: pytest.fail("weights are made"))
    result = build(tmp_path / "out" / "bundle", "--eval", text)
    assert result.exit_code == 6, result.output
    assert f"{elsewhere}: comparing with the checkpoint needs" in result.stderr
    assert "TMPDIR" in result.stderr


@pytest.mark.parametrize("ended", [KeyboardInterrupt, OSError])
def test_weights_outlive_an_evaluation_that_ends_early(
    ended: type[BaseException], tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
):
    def ends(*given: object, **options: object) -> None:
        raise ended

    flags = ("--eval", text, "--max-kl", "0.1", "--resume")
    with monkeypatch.context() as patch:
        patch.setattr(build_gate, "measure_bundle", ends)
        assert build(tmp_path / "out" / "bundle", *flags).exit_code != 0
    monkeypatch.setattr(Maker, "make", lambda maker, module: pytest.fail(f"{module.name} is made again"))
    result = build(tmp_path / "out" / "bundle", *flags)
    assert result.exit_code == 0, result.output
    assert os.listdir(tmp_path / "out") == ["bundle"]
    monkeypatch.undo()
    assert build(tmp_path / "whole", *flags).exit_code == 0
    assert open_bundle(tmp_path / "whole").bundle_id == open_bundle(tmp_path / "out" / "bundle").bundle_id


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_what_the_reference_needs_is_missed_before_the_build_and_not_behind_it(
    absent: str, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
):
    found = build_gate.find_spec
    monkeypatch.setattr(build_gate, "find_spec", lambda name: None if name == absent else found(name))
    result = build(tmp_path / "bundle", "--eval", text)
    assert result.exit_code == 2
    assert f"needs {absent}, which is not installed" in result.stderr
    assert "pip install 'qpack-llm[packager,runtime,quality]'" in result.stderr
    assert "weights" not in result.stderr
    assert os.listdir(tmp_path) == []
