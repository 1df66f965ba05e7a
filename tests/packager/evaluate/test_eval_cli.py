"""`qpack eval` as its user sees it: exit codes, messages, and reports."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bundles import ASSETS
from checkpoints import read_config, read_tensors, write_checkpoint
from qpack_packager.cli import main
from qpack_schemas.schema_check import check_schema

TEXT = ASSETS / "tiny-qwen3" / "eval.txt"


@pytest.fixture
def bundle(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3")


def run(bundle: Path, *flags: str | Path) -> Result:
    arguments = ["eval", bundle, "--text", TEXT, "--windows", "5", "--threads", "1", *flags]
    return CliRunner().invoke(main, list(map(str, arguments)))


REFERENCE = ("--reference", ASSETS / "tiny-qwen3")


def test_json_is_quality_json(bundle: Path):
    result = run(bundle, *REFERENCE, "--mode", "fast", "--mode", "exact", "--max-kl", "0.05", "--format", "json")
    assert result.exit_code == 0, result.stderr
    quality = json.loads(result.stdout)
    assert check_schema(quality, "quality.v1.schema.json", "stdout") == []
    assert quality["modes"].keys() == {"fast", "exact"}
    assert (quality["windows"], quality["window_length"], quality["tokens"]) == (5, 128, 5 * 127)
    assert quality["gate"] == {"max_kl": 0.05, "max_ppl_ratio": None, "passed": True, "findings": []}


def test_text_shows_the_numbers_of_the_json(bundle: Path, tmp_path: Path):
    shown = run(bundle, *REFERENCE)
    assert run(bundle, *REFERENCE, "--format", "json", "-o", tmp_path / "quality.json").stdout == ""
    quality = json.loads((tmp_path / "quality.json").read_text(encoding="ascii"))
    fast = quality["modes"]["fast"]
    lines = shown.stdout.splitlines()
    for name, key in (("ratio", "ppl_ratio"), ("mean KL in nats", "kl_mean"), ("perplexity", "perplexity")):
        (line,) = (line for line in lines if line.strip().startswith(name))
        assert f"{fast[key]:.5g}" in line
    assert sum(line.rstrip().endswith("#") for line in lines) == sum(map(bool, fast["kl_histogram"]["tokens"]))
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines[1:])
    assert quality["modules"][0]["tensor"] in shown.stdout


def test_without_a_reference_there_is_a_perplexity_alone(bundle: Path):
    result = run(bundle)
    assert result.exit_code == 0, result.stderr
    assert "perplexity" in result.stdout
    assert "KL" not in result.stdout


def test_a_missed_gate_is_exit_code_3_with_the_report_and_both_values(bundle: Path):
    for shape in ("text", "json"):
        result = run(bundle, *REFERENCE, "--max-ppl-ratio", "1.0001", "--max-kl", "1e-6", "--format", shape)
        assert result.exit_code == 3
        missed = [line for line in result.stderr.splitlines() if line.startswith("missed: ")]
        assert len(missed) == 2
        assert "allows 1.0001" in missed[0]
        assert "missed" in result.stdout or not json.loads(result.stdout)["gate"]["passed"]


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--max-kl", "0.1"), 2, "--reference"),
        ((*REFERENCE, "--max-kl", "nan"), 2, "--max-kl"),
        (("--windows", "0"), 2, "--windows"),
        (("--device", "reference", "--mode", "exact"), 2, "one mode"),
        (("--text", "absent.txt"), 1, "absent.txt"),
        (("--reference", "absent"), 1, "absent: is no directory"),
        (("--reference", "."), 1, "config.json: is absent"),
        (("--encoding", "*.txt"), 2, "GLOB=NAME"),
    ],
)
def test_what_can_not_be_measured_is_refused(bundle: Path, flags: tuple[str, ...], code: int, words: str):
    result = run(bundle, *flags)
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_damaged_bundle_is_never_measured(tmp_path: Path):
    assert run(tmp_path).exit_code == 5


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured in this test."""

    def measure(*_: object, **__: object) -> None:
        raise AssertionError("the bundle was measured first")

    monkeypatch.setattr("qpack_packager.evaluate.evaluate.measure_bundle", measure)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("place", "says"), [("nodir/x.json", "nodir: is no directory"), (".", "no regular file"), ("link", "is a link")]
)
def test_a_report_that_can_not_be_written_is_told_before_the_work(bundle: Path, place: str, says: str, tmp_path: Path):
    (tmp_path / "link").symlink_to("elsewhere")
    result = run(bundle, "-o", tmp_path / place)
    assert result.exit_code == 2, result.exception
    assert says in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.usefixtures("unmeasured")
def test_a_directory_that_takes_no_file_is_told_before_the_work(bundle: Path):
    """/proc takes none, not even of root."""
    result = run(bundle, "-o", "/proc/report.json")
    assert result.exit_code == 1, result.exception
    assert result.stderr.startswith("error: /proc: ")


@pytest.mark.usefixtures("unmeasured")
def test_a_report_is_not_written_into_the_bundle(bundle: Path):
    result = run(bundle, "-o", bundle / "notes.txt")
    assert result.exit_code == 2
    assert "lies in the bundle" in result.stderr
    assert not (bundle / "notes.txt").exists()


def test_text_and_reference_are_read_as_declared(bundle: Path, tmp_path: Path):
    """Each by its own flag: the last --text counts."""
    tiny = ASSETS / "tiny-qwen3"
    model = write_checkpoint(tmp_path / "model", read_config(tiny), read_tensors(tiny))
    config = (model / "config.json").read_text(encoding="utf-8").replace("{", '{"_by": "Müßig",', 1)
    (model / "config.json").write_bytes(config.encode("cp1252"))
    text = tmp_path / "held-out.txt"
    text.write_bytes(("Größe, naïve. " + TEXT.read_text(encoding="utf-8")[:500]).encode("cp1252"))
    flags = ("--text", text, "--reference", model, "--format", "json")
    assert "--encoding GLOB=NAME" in run(bundle, *flags).stderr
    assert "config.json" in run(bundle, *flags, "--encoding", "held-out.*=cp1252").stderr
    result = run(bundle, *flags, "--encoding", "held-out.*=cp1252", "--encoding", "config.json=cp1252")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["reference_perplexity"] > 1


@pytest.mark.parametrize(("model", "noted"), [("tiny-qwen3", False), ("tiny-qwen3_5", True)])
def test_a_reference_of_other_sizes_is_noted(bundle: Path, model: str, noted: bool):
    """It has the same tokenizer."""
    result = run(bundle, "--reference", ASSETS / model, "--windows", "1")
    assert result.exit_code == 0, result.stderr
    assert ("is not the checkpoint that the bundle was built from" in result.stderr) is noted


def test_a_build_measures_on_a_text_as_it_is_declared(tmp_path: Path):
    """Its name is no hint: by that it were a program."""
    text = tmp_path / "held out.py"
    text.write_bytes(("Größe, naïve. " + TEXT.read_text(encoding="utf-8")[:500]).encode("cp1252"))
    shape = ("--batch", "1", "--context", "64", "--prefill", "16")
    arguments = ["build", ASSETS / "tiny-qwen3", "-o", tmp_path / "bundle", *shape, "--eval", text]
    undeclared = CliRunner().invoke(main, list(map(str, arguments)))
    assert undeclared.exit_code == 1
    assert "--encoding GLOB=NAME" in undeclared.stderr
    assert "weights" not in undeclared.stderr
    result = CliRunner().invoke(main, list(map(str, [*arguments, "--encoding", "*.py=cp1252"])))
    assert result.exit_code == 0, result.stderr
    quality = json.loads((tmp_path / "bundle" / "quality.json").read_text(encoding="ascii"))
    assert quality["text_sha256"] == hashlib.sha256(text.read_bytes()).hexdigest()
