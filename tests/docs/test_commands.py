"""Every command of README.md and docs/ is run as its reader would run it: a page's blocks one after the other, in one
directory. What needs more than a test machine has is not run, and its qpack part read."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
import pytest

from bundles import ASSETS, build_bundle
from oci_registry import running_registry
from qpack_packager.cli import main as qpack
from qpack_packager.serving import Options
from qpack_runtime.cli import main as qpack_runtime

from .pages import PAGES, ROOT, Block, blocks_of, commands_of, each_page, prose_of

# A command line that begins so, after its variables, is not run.
NOT_HERE = {
    r"(sudo |)(docker|skopeo|cosign)\b": "a container engine, or a registry in the network",
    r"(kubectl|helm)\b": "a cluster; tests/deploy renders the chart",
    r"(sudo |)(apt-get|systemctl|journalctl|cp deploy/)": "root, and a host of its own",
    r"(sudo |)(nvidia-smi|nvpmodel|jetson_clocks)\b": "an NVIDIA driver",
    r"(sudo |)make\b": "the Makefile's own environment",
    r"(\S*/|)(pip|hf|python3 -m venv|git clone)\b": "the network",
    r"(vllm|python3 -m sglang|model_signing)\b": "another program; tests/delivery/signing runs model_signing",
    r"python (scripts|benchmarks)/": "minutes, or a GPU",
    r"qpack-runtime (doctor|tune)\b|.*--device cuda\b": "a GPU",
    r".*--target cuda\b": "minutes of compiling; tests/test_examples.py compiles stand-ins",
    r"qpack eval\b|qpack build\b.*--(eval|calibration)\b": "PyTorch, minutes; tests/packager/evaluate does",
    r"jq -e .*speedup": "a verdict on speed, which a shared machine does not give",
    r".*sha256:\.\.\.": "a digest that stands for the reader's",
}
# Commands whose exit code says what they found.
FINDS = {"qpack diff": 1, "qpack check": 1}
# Pages that make all that they use. Others take for granted what `assumed` makes.
SELF_CONTAINED = ("getting-started.md", "upgrading.md")
# What a reader has done by then, by the command before which it is needed.
REGISTRY = "registry.example.com"
BEFORE = {
    "qpack-runtime bench BUNDLE --compare main.json": "cp now.json main.json",
    "qpack plan Qwen2.5-7B": "qpack export BUNDLE -o Qwen2.5-7B-Instruct-GPTQ-Int4 --format gptq",
    "qpack plan Qwen3-4B": "cp -r MODEL Qwen3-4B; sed -i 's/2048/4096/' Qwen3-4B/config.json",
    f"qpack push {REGISTRY}/models/qwen3:1.4.0": """
        openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub.pem
        qpack sign bundle --key key.pem --version 1.4.0""",
    f"qpack pull {REGISTRY}/models/qwen3:1.5.0": f"""
        qpack build MODEL -o newer --batch 1; qpack push {REGISTRY}/models/qwen3:1.5.0 newer""",
}

SHELL = r"""
set -eu -o pipefail
qpack() { "$PYTHON" -c "import sys; from qpack_packager.cli import main; sys.argv[0] = 'qpack'; main()" "$@"; }
qpack-runtime() { "$PYTHON" -m qpack_runtime.cli "$@"; }
SERVER=
served() {
    stopped
    "$PYTHON" -m qpack_runtime.cli serve "$@" --port "$PORT" 2> server.log & SERVER=$!
    until curl -sf "localhost:$PORT/readyz" > ready.json; do
        kill -0 $SERVER || { cat server.log >&2; exit 1; }
        sleep 0.1
    done
}
stopped() { [ -z "$SERVER" ] || { kill -TERM $SERVER; wait $SERVER; SERVER=; } }
trap '[ -z "$SERVER" ] || kill -KILL $SERVER' EXIT
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `qpack build` makes it by default, for commands that name its buckets."""
    return build_bundle(ASSETS / "tiny-qwen3_5", tmp_path_factory.mktemp("docs") / "bundle", Options())


def assumed(folder: Path, bundle: Path) -> None:
    """What pages take for granted: a checkpoint, bundles, a text."""
    shutil.copytree(ASSETS / "tiny-qwen3_5", folder / "MODEL")
    for name in ("BUNDLE", "bundle"):
        shutil.copytree(bundle, folder / name)
    text = (ASSETS / "tiny-qwen3_5" / "eval.txt").read_text(encoding="utf-8")
    (folder / "held-out.txt").write_text(text[:4_000], encoding="utf-8")


@each_page
def test_every_command_of_the_page_does_what_it_seems_to(page: Path, bundle: Path, tmp_path: Path):
    text = page.read_text(encoding="utf-8")
    lines = list(_script(blocks_of(text)))
    if not lines:
        return
    here = tmp_path / "here"
    here.mkdir()
    (here / "tests").symlink_to(ROOT / "tests")
    if page.name not in SELF_CONTAINED:
        assumed(here, bundle)
    with (
        running_registry(tmp_path) if REGISTRY in text else nullcontext() as registry,
        _free_port() as port,
    ):
        script = "\n".join([SHELL, "set -x", *lines, "stopped"])
        script = re.sub(r"(?<=localhost:)80\d\d|(?<=127\.0\.0\.1:)80\d\d", str(port), script)
        if registry is not None:
            script = script.replace(REGISTRY, registry.address)
        ran = subprocess.run(
            ["bash", "-c", script], cwd=here, env=_environment(port), capture_output=True, encoding="utf-8", check=False
        )
    assert ran.returncode == 0, ran.stderr[-6000:]


@each_page
def test_every_flag_that_the_page_names_exists(page: Path):
    text = page.read_text(encoding="utf-8")
    code = [block.text.replace("\\\n", " ") for block in blocks_of(text)]
    spans = [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", prose_of(text))]
    wrong = [found for line in [*"\n".join(code).splitlines(), *spans] for found in _problems(line)]
    assert not wrong


@each_page
def test_a_block_of_commands_is_marked_as_one(page: Path):
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if re.search(
            r"^(\$ |(sudo )?(qpack|qpack-runtime|docker|curl|pip|helm|openssl|make) )", block.text, re.MULTILINE
        ):
            assert block.language in ("sh", "console", "yaml", "groovy", "ini"), block.text


def _script(blocks: list[Block]) -> Iterator[str]:
    """Lines of bash. A server that a page starts runs until the page starts another, or ends."""
    for block in blocks:
        if block.language == "python":
            yield f"\"$PYTHON\" - <<'PYTHON'\n{block.text}PYTHON"
        elif block.language in ("sh", "console"):
            for command in commands_of(block):
                yield from _lines(re.sub(r"(?<!\S)\.venv/bin/(?=qpack)", "", command))


def _lines(command: str) -> Iterator[str]:
    bare = re.sub(r"^(\w+=\S* )+", "", command)
    if re.match(r"sudo systemctl (enable --now|restart) qpack-runtime", bare):
        yield "served bundle"  # what the unit would do
    if any(re.match(pattern, bare) for pattern in NOT_HERE):
        return
    yield from (line for start, line in BEFORE.items() if bare.startswith(start))
    if output := re.match(r"qpack (?:build|export)\b.* -o (\S+)", bare):
        yield f"rm -rf {output[1]}"
    name = " ".join(bare.split()[:2])
    if name == "qpack-runtime serve":
        yield command.replace(name, "served", 1)
    elif name in FINDS:
        yield f"{{ {command}\n}} || [ $? -eq {FINDS[name]} ]"
    else:
        yield command


def _environment(port: int) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PYTHON": sys.executable, "PORT": str(port), "PATH": path, "NO_PROXY": "localhost,127.0.0.1"}
    return {**os.environ, **own}


@contextmanager
def _free_port() -> Iterator[int]:
    """That no other process is given within the block, though a server which asks for it gets it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _problems(line: str) -> Iterator[str]:
    """What our own programs would refuse of a line of a shell, of YAML or of prose."""
    for found in re.finditer(r"(?<![\w.-])(qpack|qpack-runtime)\s+([a-z][a-z-]*)(?![\w=:.])([^|;&>`#]*)", line):
        group = qpack if found[1] == "qpack" else qpack_runtime
        command = group.commands.get(found[2])
        if command is None:
            if not line[: found.start()].strip(" $"):
                yield f"{found[1]} has no command {found[2]!r}: {line}"
            continue
        yield from (f"{problem}: {line}" for problem in _wrong_flags(command, found[3]))


def _wrong_flags(command: click.Command, rest: str) -> Iterator[str]:
    flags = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
    try:
        words = shlex.split(rest)
    except ValueError:  # the line goes on elsewhere, or is prose
        words = rest.split()
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, _, value = word.strip("[](),").partition("=")
        if not re.fullmatch(r"--?[a-z][a-z-]*", name) or name in ("-h", "--help"):
            continue
        if name not in flags:
            yield f"no flag {name}"
            continue
        kind, given = flags[name].type, value or following
        if isinstance(kind, click.Choice) and re.fullmatch("[a-z0-9]+", given) and given not in kind.choices:
            yield f"{name} takes no {given}"


def test_a_command_that_does_not_exist_is_noticed():
    """The reader of flags itself."""
    assert list(_problems("qpack bake MODEL"))
    assert list(_problems("qpack build MODEL -o BUNDLE --lm-head int2"))
    assert list(_problems("run: qpack build MODEL --no-such-flag"))
    assert list(_problems(".venv/bin/qpack-runtime serve b --prot 1"))
    assert not list(_problems("docker run qpack-runtime /bundle --device cuda"))
    assert not list(_problems("sudo systemctl restart qpack-runtime"))
    assert not list(_problems("$ qpack build MODEL -o BUNDLE --lm-head int4 --module '*.down_proj.weight=int8'"))


def test_what_is_not_run_is_still_needed():
    """No pattern outlives the last command that it was for."""
    lines = [
        line
        for page in PAGES
        for block in blocks_of(page.read_text(encoding="utf-8"))
        if block.language in ("sh", "console")
        for line in commands_of(block)
    ]
    for pattern in NOT_HERE:
        assert any(re.match(rf"(\w+=\S* )*(?:{pattern})", line) for line in lines), pattern
