"""`qpack check` as its user sees it: what is read, what is written, and how it ends."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click import Choice
from click.testing import CliRunner, Result

from bundles import ASSETS
from qpack_packager.cli import main
from qpack_packager.textfix.writing_systems import WRITING_SYSTEMS

CLI = "import sys; from qpack_packager.cli import main; sys.argv[0] = 'qpack'; main()"
CHINESE = {"description": "我们很高兴地宣布这个模型现在可以在边缘设备上运行并谢谢大家的支持。"}
CLEAN = (json.dumps(CHINESE, ensure_ascii=False) + "\n").encode("utf-8")
DAMAGED = CLEAN[:40] + CLEAN[41:]


def check(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


def child(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CLI, "check", *map(str, arguments)]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, encoding="utf-8", check=False)


def findings(result: Result) -> list[dict[str, object]]:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return json.loads(result.stdout)["findings"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory of four files: clean, with a byte order mark, CRLF in GB18030, damaged."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(CLEAN)
    (folder / "generation_config.json").write_bytes(b"\xef\xbb\xbf" + CLEAN)
    (folder / "README.md").write_bytes((CHINESE["description"] * 4 + "\r\n").encode("gb18030"))
    (folder / "tokenizer_config.json").write_bytes(DAMAGED)
    return folder


def test_clean_files_end_with_0(model: Path):
    result = check(model / "config.json")
    assert (result.exit_code, result.stdout) == (0, "1 file checked, all clean\n")


def test_findings_end_with_1_and_leave_the_files_alone(model: Path):
    before = {path: path.read_bytes() for path in model.iterdir()}
    result = check(model, "--format", "json")
    assert result.exit_code == 1
    assert {Path(str(found["path"])).name for found in findings(result)} == {
        "generation_config.json",
        "README.md",
        "tokenizer_config.json",
    }
    assert {path: path.read_bytes() for path in model.iterdir()} == before


def test_the_checkpoints_of_the_tests_are_clean():
    result = check(ASSETS)
    assert result.exit_code == 0, result.stdout


def test_fix_writes_what_can_be_known_ends_with_1_and_then_finds_only_the_rest(model: Path):
    (model / "README.md").chmod(0o640)
    result = check(model, "--fix", "--format", "json")
    assert result.exit_code == 1
    fixed = {Path(str(found["path"])).name: found["fixed"] for found in findings(result)}
    assert fixed == {"generation_config.json": True, "README.md": True, "tokenizer_config.json": False}
    assert (model / "generation_config.json").read_bytes() == CLEAN
    assert (model / "README.md").read_bytes() == f"{CHINESE['description'] * 4}\n".encode()
    assert (model / "README.md").stat().st_mode & 0o777 == 0o640
    assert (model / "tokenizer_config.json").read_bytes() == DAMAGED
    again = check(model, "--fix", "--format", "json")
    assert {Path(str(found["path"])).name for found in findings(again)} == {"tokenizer_config.json"}
    (model / "tokenizer_config.json").write_bytes(CLEAN)
    assert check(model, "--strict").exit_code == 0


def test_diff_shows_what_fix_would_do_and_writes_nothing(model: Path):
    file = model / "generation_config.json"
    result = check(file, "--diff")
    assert result.exit_code == 1
    assert rf"-\ufeff{CLEAN.decode()}+{CLEAN.decode()}" in result.stdout
    assert file.read_bytes() == b"\xef\xbb\xbf" + CLEAN
    assert check(file, "--diff", "--fix").stdout == result.stdout.replace("fixable with --fix", "fixed").replace(
        "fixable", "fixed"
    )
    assert file.read_bytes() == CLEAN


def test_a_link_is_read_but_never_written(model: Path, tmp_path: Path):
    """As in the Hub's cache, where each file of a snapshot is a link to a blob that others share."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "config.json").symlink_to(model / "generation_config.json")
    found = findings(check(snapshot, "--fix", "--format", "json"))
    assert [each["rule"] for each in found] == ["QE002", "QE061"]
    assert not any(each["fixed"] for each in found)
    assert (snapshot / "config.json").is_symlink()
    assert (model / "generation_config.json").read_bytes() == b"\xef\xbb\xbf" + CLEAN


def test_a_declared_encoding_settles_what_is_never_guessed(tmp_path: Path):
    file = tmp_path / "README.md"
    file.write_bytes("Ce modèle a été entraîné à Montréal.\n".encode("cp1252"))
    refused = check(file)
    assert refused.exit_code == 1
    assert "--encoding" in refused.stdout
    assert check(file, "--fix", "--encoding", "README*=cp1252").exit_code == 1
    assert file.read_text(encoding="utf-8") == "Ce modèle a été entraîné à Montréal.\n"


def test_warnings_count_only_with_strict(tmp_path: Path):
    file = tmp_path / "README.md"
    file.write_bytes("lost: \ufffd\n".encode())
    assert [found["severity"] for found in findings(check(file, "--format", "json"))] == ["warning"]
    assert check(file).exit_code == 0
    assert check(file, "--strict").exit_code == 1


@pytest.mark.parametrize("vocabulary", ["vocab.json", "tokenizer.json"])
@pytest.mark.parametrize(("token", "rule"), [("a", "QE011"), ("a\r", "QE012")])
def test_carriage_returns_of_merges_go_only_if_no_token_beside_them_ends_so(
    vocabulary: str, token: str, rule: str, tmp_path: Path
):
    tokens = {token: 0, "b": 1}
    document = tokens if vocabulary == "vocab.json" else {"model": {"vocab": tokens}}
    (tmp_path / vocabulary).write_text(json.dumps(document) + "\n", encoding="utf-8")
    merges = tmp_path / "merges.txt"
    merges.write_bytes(b"#version: 0.2\r\na b\r\n")
    assert [found["rule"] for found in findings(check(merges, "--fix", "--format", "json"))] == [rule]
    assert (b"\r" in merges.read_bytes()) == (rule == "QE012")


def test_a_file_that_was_written_is_a_finding_even_if_it_was_only_warned_about(tmp_path: Path):
    """The commit that pre-commit is about to let through doesn't have the new bytes."""
    file = tmp_path / "config.json"
    file.write_bytes(b"{}")
    assert check(file).exit_code == 0
    assert check(file, "--fix").exit_code == 1
    assert file.read_bytes() == b"{}\n"
    assert check(file, "--fix").exit_code == 0


def test_the_encodings_of_a_site_are_those_that_are_inferred():
    option = next(option for option in main.commands["check"].params if option.name == "legacy_encoding")
    assert isinstance(option.type, Choice)
    assert set(option.type.choices) == {system.codec for system in WRITING_SYSTEMS}


def test_ascii_asks_for_json_that_every_codec_reads_alike(tmp_path: Path):
    (tmp_path / "config.json").write_bytes('{"a":  "中😀\\n"}\n'.encode())
    (tmp_path / "README.md").write_bytes("中\n".encode())
    assert check(tmp_path).exit_code == 0
    found = findings(check(tmp_path, "--ascii", "--format", "json"))
    assert [(each["rule"], each["line"], each["column"]) for each in found] == [("QE062", 1, 9)]
    check(tmp_path, "--ascii", "--fix")
    assert (tmp_path / "config.json").read_bytes() == rb'{"a":  "\u4e2d\ud83d\ude00\n"}' + b"\n"
    assert check(tmp_path, "--ascii").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing"], "no such file"),
        (["--format", "xml"], "xml"),
        (["--encoding", "README"], "GLOB=NAME"),
        (["--encoding", "*=klingon"], "no text encoding"),
        (["--legacy-encoding", "cp1252"], "cp1252"),
        (["--diff", "--format", "sarif"], "--format text"),
        (["--output", "missing/report"], "missing/report"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    result = check(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_bundle_is_checked_but_not_fixed(tiny_bundle: Callable[[str], Path], tmp_path: Path):
    bundle = Path(shutil.copytree(tiny_bundle("tiny-qwen3"), tmp_path / "bundle"))
    result = check(bundle, "--format", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["files_checked"] == len(list((bundle / "model").iterdir()))
    config = bundle / "model" / "config.json"
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())
    assert check(bundle).exit_code == 1
    for path in (bundle, tmp_path, config):
        refused = check(path, "--fix")
        assert refused.exit_code == 2
        assert "bundle" in refused.stderr
    assert config.read_bytes().startswith(b"\xef\xbb\xbf")


def test_what_cannot_be_read_is_a_finding(tmp_path: Path):
    (tmp_path / "broken.json").symlink_to("nowhere")
    (tmp_path / "loop.json").symlink_to("loop.json")
    os.mkfifo(tmp_path / "pipe.json")
    found = findings(check(tmp_path, "--format", "json"))
    assert [(Path(str(each["path"])).name, each["rule"]) for each in found] == [
        ("broken.json", "QE060"),
        ("loop.json", "QE060"),
        ("pipe.json", "QE060"),
    ]


def test_a_directory_that_cannot_be_looked_into_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = findings(check(tmp_path, "--format", "json"))
    assert [(each["path"], each["rule"]) for each in found] == [(str(tmp_path / "closed"), "QE060")]


def test_output_is_written_to_the_file_and_the_summary_to_stderr(model: Path, tmp_path: Path):
    report = tmp_path / "report.sarif"
    result = check(model, "--format", "sarif", "--output", report)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("fixable with --fix\n")
    assert report.read_text(encoding="utf-8") == check(model, "--format", "sarif").stdout


@pytest.mark.parametrize("output_format", ["text", "json", "sarif", "github"])
def test_a_terminal_without_unicode_gets_escapes_and_no_traceback(output_format: str, tmp_path: Path):
    (tmp_path / os.fsdecode("模型.md".encode())).write_bytes("lost: 中\ufffd\n".encode())
    (tmp_path / os.fsdecode(b"\xce\xd2.md")).write_bytes(b"\xef\xbb\xbfx\n")
    ran = child("--strict", "--format", output_format, cwd=tmp_path, LC_ALL="C", PYTHONUTF8="0")
    assert (ran.returncode, ran.stderr) == (1, "")
    assert ran.stdout.isascii()
    for name in {"sarif": ("%E6%A8%A1", "%CE%D2")}.get(output_format, (r"\u6a21\u578b", r"\xce\xd2")):
        assert name.replace("\\", r"\\" if output_format == "json" and "x" in name else "\\") in ran.stdout


def test_a_text_is_the_same_in_every_locale(model: Path, tmp_path: Path):
    """Class A is a reader that asks the locale; qpack is none."""
    runs = {
        locale: child(model, "--format", "json", cwd=tmp_path, LC_ALL=locale, PYTHONUTF8=utf8).stdout
        for locale, utf8 in (("C", "0"), ("C.UTF-8", "0"), ("C.UTF-8", "1"))
    }
    assert len(set(runs.values())) == 1


def test_checking_loads_neither_torch_nor_numpy_nor_transformers(model: Path):
    report = "import atexit; atexit.register(lambda: print('LOADED', *sorted(sys.modules)))"
    command = [sys.executable, "-c", f"import sys; {report}; {CLI}", "check", str(model), "--format", "sarif"]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    loaded = ran.stdout.rpartition("LOADED ")[2].split()
    assert "qpack_packager.check.run" in loaded
    assert not {"torch", "numpy", "transformers", "tokenizers", "rich"} & set(loaded)
