"""The rules of the repository itself: who may import what, which install runs what, what a file may hold."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Command lines that need no more than `pip install qpack-llm`, with how they end. BUNDLE is a whole one, `tests` is
# none.
BASE_COMMANDS = {
    "--help": 0,
    "build --help": 0,
    "validate BUNDLE": 0,
    "inspect BUNDLE": 0,
    "inspect BUNDLE --format json": 0,
    "inspect BUNDLE --format html": 0,
    "diff BUNDLE BUNDLE": 0,
    "check tests/assets": 0,
    "validate tests": 5,
    "inspect tests": 5,
}

# A machine's own paths: a home directory, root's, or a work tree of a build host.
MACHINE_PATH = re.compile(rb"(?<![\w.])(?:/(?:(?:home|Users)/[\w.-]+|root|work)/|[A-Za-z]:\\+Users\\+)")

ONLY = """
import importlib.abc, sys
class Only(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
allowed = sys.stdlib_module_names | set(sys.argv.pop(1).split())
sys.meta_path.insert(0, Only())
"""
IMPORT_ALL = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
QPACK = "import sys; from qpack_packager.cli import main; sys.argv[0] = 'qpack'; main()"
QPACK_RUNTIME = "import sys; from qpack_runtime.cli import main; sys.argv[0] = 'qpack-runtime'; main()"


def python(code: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False, input=stdin)


def installed(requirements: list[str]) -> set[str]:
    """The import names that `requirements` bring, with all that they require themselves."""
    pending, names = [Requirement(text) for text in requirements], set[str]()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if name not in names and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            names.add(name)
            pending += map(Requirement, distribution(name).requires or [])
    owners = packages_distributions().items()
    modules = {module for module, owner in owners if names & {canonicalize_name(name) for name in owner}}
    files = [file for name in names for file in distribution(name).files or []]
    # A compiled library may keep its runtime in a module beside its package, which no metadata names.
    return modules | {file.name.partition(".")[0] for file in files if file.suffix == ".so" and len(file.parts) == 1}


def tracked(*pathspecs: str) -> list[Path]:
    """What git holds or would add, so that a file is judged before it is committed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *pathspecs]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    return [path for name in names if name and (path := ROOT / os.fsdecode(name)).is_file()]


@pytest.fixture(scope="module")
def base() -> str:
    return " ".join(
        installed(PYPROJECT["project"]["dependencies"]) | {"qpack_packager", "qpack_delivery", "qpack_schemas"}
    )


@pytest.fixture(scope="module")
def edge() -> str:
    """The runtime's install, without what the runtime must not import although a dependency may bring it."""
    project, contracts = PYPROJECT["project"], PYPROJECT["tool"]["importlinter"]["contracts"]
    libraries = installed(project["dependencies"] + project["optional-dependencies"]["runtime"])
    forbidden = next(set(contract["forbidden_modules"]) for contract in contracts if contract["id"] == "runtime")
    assert {"torch", "transformers", "triton", "chardet", "yaml", "huggingface_hub"} <= forbidden
    return " ".join(libraries - forbidden | {"qpack_runtime", "qpack_delivery", "qpack_schemas"})


def test_the_contract_imports_only_the_standard_library_and_jsonschema():
    allowed = sys.stdlib_module_names | {"jsonschema", "qpack_schemas"}
    files = sorted((ROOT / "schemas").rglob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            else:
                continue
            for module in modules:
                assert module.partition(".")[0] in allowed, f"{file}:{node.lineno} imports {module}"


@pytest.mark.parametrize("room", ["packager", "schemas", "delivery", "runtime"])
def test_every_folder_of_code_is_a_package(room: str):
    """import-linter, type checkers and pkgutil look into packages only."""
    for file in (ROOT / room / f"qpack_{room}").rglob("*.py"):
        assert (file.parent / "__init__.py").is_file(), f"{file.parent} has no __init__.py"


def test_the_runtime_imports_with_nothing_but_its_own_install(edge: str):
    files = [file.relative_to(ROOT / "runtime").with_suffix("") for file in (ROOT / "runtime").rglob("*.py")]
    modules = {".".join(file.parts).removesuffix(".__init__") for file in files if file.name != "__main__"}
    assert {"qpack_runtime", "qpack_runtime.cli"} <= modules
    ran = python(ONLY + IMPORT_ALL, edge, *sorted(modules))
    assert ran.returncode == 0, ran.stderr
    ran = python(ONLY + QPACK_RUNTIME, edge, "--help")
    assert ran.returncode == 0, ran.stderr


def test_the_runtime_decodes_with_nothing_but_its_own_install(edge: str, tiny_bundle: Callable[[str], Path]):
    for arguments in (["--prompt", "And the LORD"], ["--messages", "-"]):
        command = ["generate", str(tiny_bundle("tiny-qwen3_5")), *arguments, "--max-tokens", "4", "--format", "json"]
        messages = '[{"role": "user", "content": "Who art thou?"}]'
        ran = python(ONLY + QPACK_RUNTIME, edge, *command, stdin=messages)
        assert ran.returncode == 0, ran.stderr
        assert len(json.loads(ran.stdout)["output_ids"]) == 4


def test_the_cuda_extra_is_small_and_brings_no_compiler():
    """60 MB at most for all of the runtime's extras that a GPU asks for beyond those of the CPU."""
    extras = PYPROJECT["project"]["optional-dependencies"]
    names = [Requirement(text).name for text in extras["cuda"]]
    files = [file for name in names for file in distribution(name).files or []]
    assert sum(file.size or 0 for file in files) < 60 << 20
    assert not [file for file in files if re.search("nvrtc|nvvm|ptxas|nvcc", file.name)]
    assert not [text for name in names for text in distribution(name).requires or []]


def test_a_build_without_triton_is_told_the_install_it_needs(tmp_path: Path):
    requirements = PYPROJECT["project"]["dependencies"] + PYPROJECT["project"]["optional-dependencies"]["packager"]
    allowed = " ".join(installed(requirements) | {"qpack_packager", "qpack_delivery", "qpack_schemas"})
    command = ["build", "tests/assets/tiny-qwen3", "-o", str(tmp_path / "bundle"), "--target", "cuda:sm_89"]
    ran = python(ONLY + QPACK, allowed, *command)
    assert (ran.returncode, "Traceback" in ran.stderr) == (2, False), ran.stderr
    assert "pip install 'qpack-llm[" in ran.stderr
    assert "kernels]'" in ran.stderr
    assert list(tmp_path.iterdir()) == []
    assert python(ONLY + QPACK, allowed, "plan", "tests/assets/tiny-qwen3").returncode == 0
    assert python(ONLY + QPACK, allowed, "doctor", "tests/assets/tiny-qwen3").returncode == 0


def test_help_loads_neither_torch_nor_triton_nor_numpy():
    report = "import atexit; atexit.register(lambda: print('LOADED', *sorted(sys.modules)))"
    ran = python(f"import sys; {report}; {QPACK}", "--help")
    assert ran.returncode == 0, ran.stderr
    loaded = ran.stdout.rpartition("LOADED ")[2].split()
    assert "qpack_packager.cli" in loaded
    assert not {"torch", "numpy", "transformers", "triton"} & set(loaded)


@pytest.mark.parametrize("command", BASE_COMMANDS)
def test_the_base_install_is_enough_for(command: str, base: str, tiny_bundle: Callable[[str], Path]):
    bundle = str(tiny_bundle("tiny-qwen3"))
    ran = python(ONLY + QPACK, base, *(bundle if word == "BUNDLE" else word for word in command.split()))
    assert "Traceback" not in ran.stderr, ran.stderr
    assert "pip install" not in ran.stderr, ran.stderr
    assert ran.returncode == BASE_COMMANDS[command], ran.stderr


def test_the_architecture_page_names_every_file_of_the_rooms():
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for file in tracked("packager", "schemas", "delivery", "runtime"):
        if file.name != "__init__.py":
            assert re.search(rf"(?<!\w){re.escape(file.name)}", page), f"ARCHITECTURE.md doesn't say what {file} is for"


def test_no_file_holds_a_path_of_somebodys_machine():
    files = tracked()
    assert ROOT / "pyproject.toml" in files
    for file in files:
        found = MACHINE_PATH.search(file.read_bytes())
        assert not found, f"{file} holds {found.group()!r}"


def test_every_text_file_is_utf8_without_bom_with_lf():
    files = tracked(".", ":(exclude,attr:binary)")
    assert Path(__file__) in files
    for file in files:
        data = file.read_bytes()
        assert not data.startswith(b"\xef\xbb\xbf"), f"{file} begins with a byte order mark"
        carriage_return = data.find(b"\r")
        assert carriage_return < 0, f"{file}:{data.count(bytes([10]), 0, carriage_return) + 1} has a carriage return"
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            pytest.fail(f"{file} is not UTF-8: {error}; mark it binary in .gitattributes if it must not be")
