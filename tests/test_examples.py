"""Every example in the help of the two programs does what it seems to do."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from example_folder import PROGRAMS, make_folder, run
from oci_registry import running_registry
from qpack_packager.cli.examples import EXAMPLES
from qpack_runtime.cli_examples import EXAMPLES as RUNTIME_EXAMPLES
from server_process import ServerProcess

ALL = [example for examples in (EXAMPLES, RUNTIME_EXAMPLES) for one in examples.values() for example in one]
RUNTIME_SERVE = [example for example in ALL if example.startswith("qpack-runtime serve")]
# What an example may end with beside 0: bundles that differ, findings; no GPU here.
CODES = {"qpack diff": 1, "qpack check ": 1, "qpack-runtime doctor": 4, "qpack-runtime tune": 4}
SLOW = ("--eval", "--reference", "qpack kernels")  # PyTorch; a disassembler for each kernel


@pytest.fixture(scope="module")
def prepared(tiny_bundle: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    make_folder(tiny_bundle, folder)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "here"))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running.address


def output_of(example: str) -> str | None:
    words = example.split()
    return next((words[words.index(flag) + 1] for flag in ("-o", "--output", ">") if flag in words), None)


@pytest.mark.parametrize(("program", "examples"), [("qpack", EXAMPLES), ("qpack-runtime", RUNTIME_EXAMPLES)])
def test_every_command_shows_two_or_three_examples_of_itself(program: str, examples: dict[str, tuple[str, ...]]):
    commands = PROGRAMS[program].commands
    assert commands.keys() == examples.keys()
    for name, command in commands.items():
        shown = command.get_help(click.Context(command, info_name=name)).partition("Examples:\n")[2].splitlines()
        assert 2 <= len(shown) <= 3, name
        assert [line.strip() for line in shown] == list(examples[name])
        assert all(len(line) <= 80 and f"{line} ".startswith(f"    {program} {name} ") for line in shown), shown


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, marks=[pytest.mark.nightly] if any(flag in example for flag in SLOW) else [])
        for example in ALL
        if example not in RUNTIME_SERVE
    ],
)
def test_an_example_runs(example: str, folder: Path, registry: str):
    output = output_of(example)
    if output and example.startswith("qpack "):
        if example.startswith("qpack pull"):
            tag = ":1.4.0" if ":1.4.0" in example else ""
            run(f"qpack push {registry}/models/qwen3{tag} bundle", folder)
        shutil.rmtree(folder / output, ignore_errors=True)
    if example.startswith("qpack sign"):
        (folder / "bundle" / "signature.dsse.json").unlink()
    ran = run(example.replace("registry.example.com", registry), folder)
    code = next((code for start, code in CODES.items() if example.startswith(start)), 0)
    assert ran.exit_code in {0, code}, ran.output
    if output and ran.exit_code == 0:
        assert (folder / output).exists()
    else:
        assert ran.output


@pytest.mark.parametrize("example", RUNTIME_SERVE)
def test_an_example_of_serving_boots_and_ends_when_it_is_told_to(example: str, folder: Path):
    _, _, bundle, *flags = example.split()
    flags = [str(folder / flag) if (folder / flag).exists() else flag for flag in flags]
    if "cuda" in flags:
        flags[flags.index("cuda")] = "cpu"  # the one thing that this host may not have
    with ServerProcess(folder / bundle, *flags) as server:
        server.line("ready")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
