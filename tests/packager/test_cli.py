"""`qpack` as its user sees it: exit codes, messages, and what is on stdout."""

import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from bundles import ASSETS, own_files
from checkpoints import TINY_QWEN3, TINY_QWEN3_5, read_config, write_checkpoint
from qpack_packager.bundle_writer import BundleWriter
from qpack_packager.cli import main
from qpack_schemas.manifest import seal

SMALL = ("--batch", "1,2", "--context", "64", "--prefill", "16")
CLI = "import sys; from qpack_packager.cli import main; sys.argv[0] = 'qpack'; main()"
# What a smaller install lacks can't be found; the rest of the environment is left as it is.
LACKING = """
import importlib.abc, sys
class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in lacking:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
lacking = set(sys.argv.pop(1).split())
sys.meta_path.insert(0, Lacking())
"""
PACKAGER_EXTRA = "numpy ml_dtypes rich torch transformers safetensors tokenizers jinja2"


def qpack(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(result: Result, code: int) -> str:
    """The message of a command that ended with `code`: `error: ...` and at most a remedy, nothing on stdout."""
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == code, result.stderr
    assert result.stdout == ""
    first, *others = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert len(others) <= 1
    assert all(line.startswith("  remedy: ") for line in others)
    return result.stderr


def child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, encoding="utf-8", check=False)


@pytest.fixture
def damaged(tiny_bundle: Callable[[str], Path], tmp_path: Path) -> Path:
    bundle = Path(shutil.copytree(tiny_bundle("tiny-qwen3"), tmp_path / "damaged"))
    file = bundle / "programs" / "decode.json"
    file.write_bytes(file.read_bytes()[:-1])
    return bundle


@pytest.mark.parametrize("model", ["absent", "file", "empty"])
@pytest.mark.parametrize("command", ["build", "plan"])
def test_a_model_that_is_no_checkpoint_is_wrong_input(command: str, model: str, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    output = ("-o", tmp_path / "bundle") if command == "build" else ()
    message = refused(qpack(command, tmp_path / model, *output), 1)
    assert str(tmp_path / model) in message
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("command", ["validate", "inspect"])
def test_a_bundle_that_is_no_directory_is_wrong_input(command: str, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    for name in ("absent", "file"):
        assert f"{tmp_path / name}: is no directory" in refused(qpack(command, tmp_path / name), 1)
    assert "is no directory" in refused(qpack("diff", tmp_path / "absent", tmp_path / "file"), 1)


@pytest.mark.parametrize("exists", ["directory", "file", "link"])
def test_an_output_that_exists_is_left_alone(exists: str, tmp_path: Path):
    output = tmp_path / "output"
    if exists == "directory":
        output.mkdir()
    elif exists == "file":
        output.write_bytes(b"mine")
    else:
        output.symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    assert "exists already" in refused(qpack("build", TINY_QWEN3, "-o", output), 2)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_output_below_a_file_is_refused_before_any_work(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    message = refused(qpack("build", tmp_path / "no-model", "-o", tmp_path / "file" / "a" / "b"), 2)
    assert f"{tmp_path / 'file'}: is a file" in message


def test_a_target_that_is_not_supported_is_said_to_be_so(tmp_path: Path):
    result = qpack("build", TINY_QWEN3, "-o", tmp_path / "bundle", "--target", "cpu", "--target", "cuda:sm_70")
    message = refused(result, 4)
    assert "cuda:sm_70" in message
    assert "cuda:sm_89" in message  # among those that are
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("numbers", ["", "a", "1,", "1,,2", "1.5", "1 2", "0x1"])
@pytest.mark.parametrize("flag", ["--batch", "--context", "--prefill"])
def test_a_flag_that_is_no_list_of_numbers_is_a_usage_error(flag: str, numbers: str):
    result = qpack("plan", TINY_QWEN3, flag, numbers)
    assert result.exit_code == 2
    assert f"Invalid value for '{flag}'" in result.stderr
    assert "is not a list of whole numbers such as 1,2,4" in result.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--context", "4096"), ["--context 4096", "2048"]),
        (("--batch", "1,8", "--slots", "4"), ["--slots 4", "8"]),
        (("--batch", "0,1"), ["--batch 0,1", "from 1 to"]),
        (("--prefill", "-1"), ["--prefill -1", "from 1 to"]),
        (("--context", "0"), ["--context 0", "from 1 to"]),
    ],
)
@pytest.mark.parametrize("command", ["build", "plan"])
def test_shapes_that_make_no_sense_are_usage_errors(
    command: str, flags: tuple[str, ...], says: list[str], tmp_path: Path
):
    output = ("-o", tmp_path / "bundle") if command == "build" else ()
    message = refused(qpack(command, TINY_QWEN3, *output, *flags), 2)
    assert all(part in message for part in says)


def test_an_unsupported_architecture_is_refused_by_name(tmp_path: Path):
    config = {**read_config(TINY_QWEN3), "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    model = write_checkpoint(tmp_path / "model", config, {"a": np.zeros(1, np.float32)})
    assert "qwen3_moe" in refused(qpack("plan", model), 4).lower()


@pytest.mark.parametrize("command", ["validate", "inspect", "diff"])
def test_a_damaged_bundle_is_named_with_the_place(command: str, damaged: Path, tiny_bundle: Callable[[str], Path]):
    others = (tiny_bundle("tiny-qwen3"),) if command == "diff" else ()
    result = qpack(command, *others, damaged)
    assert (result.exit_code, result.stdout) == (5, "")
    assert f"error: {damaged}: the bundle is damaged (1 finding):\n  programs/decode.json: has " in result.stderr


@pytest.mark.parametrize("command", ["validate", "inspect"])
def test_a_bundle_of_another_version_is_told_from_a_damaged_one(command: str, damaged: Path):
    manifest = json.loads((damaged / "manifest.json").read_bytes())
    (damaged / "manifest.json").write_bytes(seal({**manifest, "schema_version": "2.0"}))
    result = qpack(command, damaged)
    assert (result.exit_code, result.stdout) == (7, "")
    assert "is 2.0, this qpack reads 1." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "absent"], 1),
        (["plan", str(TINY_QWEN3), "--context", "4096"], 2),
        (["build", str(TINY_QWEN3), "-o", "bundle", "--target", "cuda:sm_70"], 4),
        (["validate", "empty"], 5),
        (["inspect", "empty"], 5),
        (["diff", "empty", "empty"], 5),
    ],
)
def test_with_format_json_an_error_is_one_json_object_on_stdout(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    result = qpack(*arguments, "--format", "json")
    assert result.exit_code == code
    facts = json.loads(result.stdout)["error"]
    assert facts["exit_code"] == code
    assert facts["message"] in result.stderr
    assert facts["remedy"] in result.stderr
    assert bool(facts["findings"]) == (code == 5)


def test_build_validate_inspect_and_diff_agree_on_the_bundle(tmp_path: Path):
    bundle = tmp_path / "bundle"
    built = qpack("build", TINY_QWEN3_5, "-o", bundle, *SMALL, "--format", "json")
    assert built.exit_code == 0, built.stderr
    bundle_id = json.loads(built.stdout)["bundle_id"]
    files = len(own_files(bundle))
    valid = json.loads(qpack("validate", bundle, "--format", "json").stdout)
    assert valid == {"valid": True, "bundle_id": bundle_id, "files": files}
    assert qpack("validate", bundle).stdout == f"{bundle} is whole: {files} files, bundle_id {bundle_id}\n"
    assert json.loads(qpack("inspect", bundle, "--format", "json").stdout)["bundle_id"] == bundle_id
    again = qpack("build", TINY_QWEN3_5, "-o", tmp_path / "again", *SMALL)
    assert again.exit_code == 0
    assert again.stdout.splitlines()[0] == str(tmp_path / "again")
    assert bundle_id in again.stdout
    assert qpack("diff", bundle, tmp_path / "again").exit_code == 0


def test_diff_ends_with_1_if_the_bundles_differ(tiny_bundle: Callable[[str], Path]):
    result = qpack("diff", tiny_bundle("tiny-qwen3"), tiny_bundle("tiny-qwen3_5"))
    assert (result.exit_code, result.stderr) == (1, "")
    assert "/model/family" in result.stdout


@pytest.mark.parametrize("arguments", [["build", str(TINY_QWEN3), "-o", "bundle"], ["plan", str(TINY_QWEN3)]])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    ran = child(LACKING + CLI, PACKAGER_EXTRA, *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    first = r"error: this command needs (\w+), which is not installed\n  remedy: pip install 'qpack-llm\[packager\]'\n"
    named = re.fullmatch(first, ran.stderr)
    assert named, ran.stderr
    assert named[1] in PACKAGER_EXTRA.split()
    as_json = child(LACKING + CLI, PACKAGER_EXTRA, *arguments, "--format", "json")
    assert json.loads(as_json.stdout)["error"]["remedy"] == "pip install 'qpack-llm[packager]'"


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(writer, path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / path))

    monkeypatch.setattr(BundleWriter, "_write", full)
    result = qpack("build", TINY_QWEN3, "-o", tmp_path / "bundle", "--format", "json")
    facts = json.loads(result.stdout)["error"]
    assert (result.exit_code, facts["message"]) == (1, "No space left on device")
    assert facts["where"].startswith(str(tmp_path))
    assert "another disk" in facts["remedy"]


@pytest.mark.parametrize("command", ["validate", "inspect", "diff"])
def test_bundles_are_read_on_the_base_install(command: str, tiny_bundle: Callable[[str], Path]):
    bundle = str(tiny_bundle("tiny-qwen3_5"))
    ran = child(LACKING + CLI, PACKAGER_EXTRA, command, *[bundle] * (2 if command == "diff" else 1))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(qpack("validate", bundle, "--format", "json").stdout)["bundle_id"] in ran.stdout


@pytest.mark.parametrize("output_format", ["text", "json"])
def test_a_reader_that_has_seen_enough_is_no_error(output_format: str, tiny_bundle: Callable[[str], Path]):
    """As in `qpack inspect BUNDLE | head -1`."""
    command = [sys.executable, "-c", CLI, "inspect", str(tiny_bundle("tiny-qwen3_5")), "--format", output_format]
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    os.close(writer)
    assert ran.stderr == ""


def test_ctrl_c_leaves_one_line_and_no_bundle(tmp_path: Path):
    config = {**read_config(TINY_QWEN3), "intermediate_size": 65_536}  # a second or more of work per layer
    sizes = {"gate_proj": (65_536, 128), "up_proj": (65_536, 128), "down_proj": (128, 65_536)}
    tensors = {
        name: np.ones(sizes.get(name.split(".")[-2], tensor.shape), np.float32)
        for name, tensor in _tiny_tensors().items()
    }
    model = write_checkpoint(tmp_path / "model", config, tensors)
    (tmp_path / "out").mkdir()
    restore = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in background jobs
    command = [sys.executable, "-c", restore + CLI, "build", str(model), "-o", str(tmp_path / "out" / "bundle")]
    with subprocess.Popen([*command, "--progress", "json"], stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stderr is not None
        while (event := json.loads(process.stderr.readline()))["event"] != "step" or event["phase"] != "weights":
            pass
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().splitlines()
    assert process.returncode == 130
    assert [line for line in rest if not line.startswith("{")] == ["error: interrupted"]
    assert list((tmp_path / "out").iterdir()) == []


def _tiny_tensors() -> dict[str, np.ndarray]:
    from checkpoints import read_tensors

    return read_tensors(ASSETS / "tiny-qwen3")


@pytest.mark.parametrize("command", [[], ["build"], ["plan"], ["validate"], ["inspect"], ["diff"]])
def test_help_fits_a_terminal_and_cuts_no_sentence(command: list[str]):
    result = CliRunner().invoke(main, [*command, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "..." not in result.stdout.replace("N,N,...", "").replace("[ARGS]...", "")


def test_a_full_disk_is_named_and_leaves_no_bundle(tmp_path: Path):
    """A limit on the size of files stands in for the disk: the same error, from the same call."""
    command = [sys.executable, "-c", CLI]
    ran = subprocess.run(
        [*command, "build", str(TINY_QWEN3), "-o", str(tmp_path / "bundle")],
        capture_output=True,
        encoding="utf-8",
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)),
    )
    assert ran.returncode == 1
    assert "weights/00000.safetensors: File too large" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert list(tmp_path.iterdir()) == []
