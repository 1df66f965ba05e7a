"""`qpack-runtime` as its user sees it: exit codes, messages, and what is on stdout."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer

from instruction import kernels
from qpack_runtime.cli import main
from qpack_runtime.cpu.host import default_threads

CLI = "import sys; from qpack_runtime.cli import main; sys.argv[0] = 'qpack-runtime'; main()"
LACKING = """
import importlib.abc, sys
class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in lacking:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
lacking = set(sys.argv.pop(1).split())
sys.meta_path.insert(0, Lacking())
"""
HELLO = json.dumps([{"role": "user", "content": "And the king said"}])


@pytest.fixture
def bundle(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3_5")


def generate(bundle: Path, *arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["generate", str(bundle), *map(str, arguments)], input=stdin)


def answered(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refused(result: Result, code: int) -> str:
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == code, result.stderr
    assert result.stdout == ""
    first, *others = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert len(others) <= 1
    assert all(line.startswith("  remedy: ") for line in others)
    return result.stderr


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_json_holds_ids_text_reason_buckets_and_timings(bundle: Path):
    facts = answered(generate(bundle, "--prompt", "And the", "--max-tokens", "6", "--format", "json"))
    tokenizer = Tokenizer.from_file(str(bundle / "model" / "tokenizer.json"))
    assert facts["prompt_ids"] == tokenizer.encode("And the").ids
    assert len(facts["output_ids"]) == 6
    assert facts["text"] == tokenizer.decode(facts["output_ids"])
    assert facts["finish_reason"] == "length"
    assert facts["buckets"] == {"decode-b1-c64": 5, "prefill-t16-c64": 1}
    timings = facts["timings"]
    phases = ("verify", "map", "pack", "bind", "tokenizer")
    assert {f"boot_{phase}_s" for phase in phases} | {"prefill_s", "decode_s"} == timings.keys()
    assert all(seconds >= 0 for seconds in timings.values())


def test_without_flags_the_cpu_decodes_fast_on_all_its_cores(bundle: Path):
    facts = answered(generate(bundle, "--prompt", "And the", "--max-tokens", "2", "--format", "json"))
    assert (facts["device"], facts["mode"], facts["threads"]) == ("cpu", "fast", default_threads())
    assert facts["code_path"] == kernels().paths[0]
    assert facts["notes"] == []


@pytest.mark.parametrize("path", kernels().paths)
def test_mode_threads_and_code_path_are_those_of_the_flags(bundle: Path, path: str):
    flags = ("--device", "cpu", "--mode", "exact", "--threads", "3", "--code-path", path)
    arguments = ("--prompt", "And the", "--max-tokens", "8", "--format", "json")
    facts = answered(generate(bundle, *arguments, *flags))
    assert (facts["device"], facts["mode"], facts["threads"], facts["code_path"]) == ("cpu", "exact", 3, path)
    assert facts["output_ids"] == answered(generate(bundle, *arguments, "--device", "reference"))["output_ids"]


def test_the_reference_has_neither_mode_nor_threads(bundle: Path):
    arguments = ("--prompt", "And the", "--max-tokens", "2", "--format", "json")
    facts = answered(generate(bundle, "--device", "reference", *arguments))
    assert facts["device"] == "reference"
    assert not {"mode", "threads", "code_path"} & facts.keys()
    assert "boot_pack_s" not in facts["timings"]


@pytest.mark.parametrize("device", ["reference", "cuda"])
@pytest.mark.parametrize("flags", [("--mode", "fast"), ("--threads", "2"), ("--code-path", "portable")])
def test_flags_of_the_cpu_are_a_usage_error_for_another_device(bundle: Path, device: str, flags: tuple[str, str]):
    message = refused(generate(bundle, "--prompt", "a", "--device", device, *flags), 2)
    assert device in message
    assert flags[0] in message


@pytest.mark.parametrize("flags", [("--threads", "0"), ("--mode", "slow"), ("--code-path", "sse"), ("--verify", "no")])
def test_a_flag_that_there_is_not_is_a_usage_error(bundle: Path, flags: tuple[str, str]):
    result = generate(bundle, "--prompt", "a", *flags)
    assert result.exit_code == 2
    assert flags[0] in result.stderr


def test_quick_verification_reads_no_bytes_of_the_weights_but_their_size(bundle: Path, tmp_path: Path):
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    weights = copy / "weights" / "00000.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1  # of a tensor: nothing else tells
    weights.write_bytes(data)
    arguments = ("--prompt", "a", "--max-tokens", "1")
    assert generate(copy, *arguments).exit_code == 5
    assert generate(copy, *arguments, "--verify", "full").exit_code == 5
    assert generate(copy, *arguments, "--verify", "quick").exit_code == 0
    weights.write_bytes(data[:-1])
    assert generate(copy, *arguments, "--verify", "quick").exit_code == 5


def test_without_cpu_kernels_the_reference_decodes_and_stderr_says_so(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("qpack_runtime.cpu.native.LIBRARY", tmp_path / "absent.so")
    arguments = ("--prompt", "And the", "--max-tokens", "2")
    facts = answered(generate(bundle, *arguments, "--format", "json"))
    assert facts["device"] == "reference"
    (note,) = facts["notes"]
    assert f"note: {note}\n" in generate(bundle, *arguments).stderr
    assert "--device reference" in refused(generate(bundle, *arguments, "--device", "cpu"), 4)


def test_text_is_the_answer_alone_and_what_was_done_goes_to_stderr(bundle: Path):
    arguments = ("--prompt", "And the", "--max-tokens", "6")
    facts = answered(generate(bundle, *arguments, "--format", "json"))
    result = generate(bundle, *arguments)
    assert result.stdout == facts["text"] + "\n"
    assert "6 tokens" in result.stderr
    assert "decode-b1-c64 x 5" in result.stderr
    assert all(len(line) <= 80 for line in result.stderr.splitlines())


def test_a_seed_gives_the_same_answer_and_another_one_another(bundle: Path):
    def ids(seed: int) -> list[int]:
        sampling = ("--temperature", "1", "--top-k", "50", "--top-p", "0.95", "--seed", str(seed))
        arguments = ("--prompt", "And the", "--max-tokens", "12", *sampling, "--format", "json")
        return answered(generate(bundle, *arguments))["output_ids"]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_a_chat_is_rendered_by_the_bundles_template(bundle: Path, tmp_path: Path):
    arguments = ("--max-tokens", "2", "--format", "json")
    from_file = answered(generate(bundle, "--messages", write(tmp_path / "chat.json", HELLO), *arguments))
    from_stdin = answered(generate(bundle, "--messages", "-", *arguments, stdin=HELLO))
    tokenizer = Tokenizer.from_file(str(bundle / "model" / "tokenizer.json"))
    prompt = tokenizer.decode(from_file["prompt_ids"], skip_special_tokens=False)
    assert from_stdin["prompt_ids"] == from_file["prompt_ids"]
    assert "And the king said" in prompt
    assert prompt != "And the king said"


@pytest.mark.parametrize("arguments", [(), ("--prompt", "a", "--messages", "b.json")])
def test_prompt_and_messages_exclude_each_other_and_one_is_needed(arguments: tuple[str, ...], bundle: Path):
    assert "either --prompt or --messages" in refused(generate(bundle, *arguments), 2)


@pytest.mark.parametrize("text", ["{", '{"a": 1}{', '[{"role": "user", "role": "user"}]', "[NaN]"])
def test_messages_that_are_no_json_are_wrong_input_with_the_line(text: str, bundle: Path, tmp_path: Path):
    path = write(tmp_path / "chat.json", text)
    assert f"{path}: line 1" in refused(generate(bundle, "--messages", path), 1)
    assert "stdin: line 1" in refused(generate(bundle, "--messages", "-", stdin=text), 1)


@pytest.mark.parametrize("messages", [{}, [], "text", [1], [{"content": "a"}], [{"role": "user"}]])
def test_json_that_is_no_chat_is_a_usage_error(messages: Any, bundle: Path, tmp_path: Path):
    path = write(tmp_path / "chat.json", json.dumps(messages))
    assert str(path) in refused(generate(bundle, "--messages", path), 2)


@pytest.mark.parametrize("data", [b"\xff", b"\xef\xbb\xbf[]"])
def test_messages_that_are_not_utf8_are_wrong_input(data: bytes, bundle: Path, tmp_path: Path):
    path = tmp_path / "chat.json"
    path.write_bytes(data)
    assert "save it as UTF-8 without BOM" in refused(generate(bundle, "--messages", path), 1)


def test_stdin_that_is_not_utf8_is_wrong_input(bundle: Path):
    result = CliRunner().invoke(main, ["generate", str(bundle), "--messages", "-"], input=b'["\xff"]')
    assert "stdin: is not UTF-8" in refused(result, 1)


def test_messages_that_can_not_be_read_are_wrong_input(bundle: Path, tmp_path: Path):
    assert f"{tmp_path}: Is a directory" in refused(generate(bundle, "--messages", tmp_path), 1)
    absent = tmp_path / "absent.json"
    assert f"{absent}: No such file" in refused(generate(bundle, "--messages", absent), 1)


def test_an_image_is_not_supported(bundle: Path, tmp_path: Path):
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    path = write(tmp_path / "chat.json", json.dumps([{"role": "user", "content": content}]))
    assert '"image_url" is not supported' in refused(generate(bundle, "--messages", path), 4)


def test_a_prompt_beyond_the_context_does_not_fit(bundle: Path):
    message = refused(generate(bundle, "--prompt", "king " * 300), 6)
    assert "context is 128" in message


def test_an_answer_ends_where_the_context_does(bundle: Path):
    facts = answered(generate(bundle, "--prompt", "And the", "--max-tokens", "9999", "--format", "json"))
    assert facts["finish_reason"] == "stop" or len(facts["prompt_ids"]) + len(facts["output_ids"]) == 128


@pytest.mark.parametrize("prompt", ["", "\udcff"])
def test_a_prompt_without_text_is_a_usage_error(prompt: str, bundle: Path):
    """Python gives a byte that is no UTF-8 as half of a surrogate pair."""
    refused(generate(bundle, "--prompt", prompt), 2)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--temperature", "-1"), ("--top-p", "nan"), ("--top-p", "0"), ("--top-k", "1000"), ("--seed", "-1")],
)
def test_sampling_that_makes_no_sense_is_a_usage_error(flag: str, value: str, bundle: Path):
    message = refused(generate(bundle, "--prompt", "a", flag, value), 2)
    assert flag.strip("-").replace("-", "_") in message


def test_a_bundle_that_is_no_directory_is_wrong_input(tmp_path: Path):
    assert "is no directory" in refused(generate(tmp_path / "absent", "--prompt", "a"), 1)


def test_a_damaged_bundle_is_never_booted(bundle: Path, tmp_path: Path):
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    weights = copy / "weights" / "00000.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    result = generate(copy, "--prompt", "a", "--format", "json")
    assert result.exit_code == 5
    (finding,) = json.loads(result.stdout)["error"]["findings"]
    assert finding["where"] == "weights/00000.safetensors"
    assert "sha256" in finding["message"]


def test_with_format_json_an_error_is_one_json_object_on_stdout(bundle: Path, tmp_path: Path):
    cases = [
        ((bundle, "--messages", tmp_path / "absent.json"), 1),
        ((bundle, "--prompt", ""), 2),
        ((tmp_path, "--prompt", "a"), 5),
        ((bundle, "--prompt", "king " * 300), 6),
    ]
    for arguments, code in cases:
        result = generate(*arguments, "--format", "json")
        facts = json.loads(result.stdout)["error"]
        assert (result.exit_code, facts["exit_code"]) == (code, code)
        assert facts["message"] in result.stderr


@pytest.mark.parametrize("lacking", ["numpy", "ml_dtypes", "tokenizers", "jinja2"])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(lacking: str, bundle: Path, tmp_path: Path):
    path = write(tmp_path / "chat.json", HELLO)
    command = [sys.executable, "-c", LACKING + CLI, lacking, "generate", str(bundle), "--messages", str(path)]
    if lacking == "ml_dtypes":  # compiled kernels do without
        command += ["--device", "reference"]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        f"error: this command needs {lacking}, which is not installed\n  remedy: pip install 'qpack-llm[runtime]'\n"
    )


def test_compiled_kernels_need_nothing_that_makes_bfloat16_a_number(bundle: Path, tmp_path: Path):
    """It takes 8 MB of every idle server, and half a second of every boot, in one version."""
    path = write(tmp_path / "chat.json", HELLO)
    arguments = ["generate", str(bundle), "--messages", str(path), "--device", "cpu"]
    command = [sys.executable, "-c", LACKING + CLI, "ml_dtypes", *arguments]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


@pytest.mark.parametrize("command", [[], ["generate"]])
def test_help_fits_a_terminal(command: list[str]):
    result = CliRunner().invoke(main, [*command, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


@pytest.mark.parametrize("flag", ["--timeout", "--drain", "--longest-wait"])
@pytest.mark.parametrize("seconds", ["nan", "-1", "soon"])
def test_a_server_is_told_of_seconds_in_numbers(bundle: Path, flag: str, seconds: str):
    ran = CliRunner().invoke(main, ["serve", str(bundle), flag, seconds])
    assert ran.exit_code == 2
    assert flag in ran.stderr
