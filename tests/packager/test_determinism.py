"""The same inputs give the same bundle, to the byte, whatever the machine, the account and the directory are called."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bundles import ASSETS, build_bundle, own_files
from qpack_schemas.bundle import open_bundle

MODEL = "tiny-qwen3_5"
BUILD = """
import getpass, os, platform, socket, sys
from pathlib import Path
cpus = sorted(os.sched_getaffinity(0))[: int(sys.argv.pop())]
os.sched_setaffinity(0, cpus)
socket.gethostname = socket.getfqdn = platform.node = lambda *_: "qhostq"
getpass.getuser = lambda: "quserq"
from bundles import build_bundle
build_bundle(Path(sys.argv[1]), Path(sys.argv[2]))
"""
MACHINE = {"USER": "quserq", "LOGNAME": "quserq", "HOSTNAME": "qhostq", "HOME": "/home/quserq"}
NAMES = (b"quserq", b"qhostq", b"qsourceq", b"qoutputq", b"/home/", b"/tmp/")

# What numpy would use on this processor beyond its baseline; without it, it computes as on an old one.
EXTENSIONS: list[str] = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])

ENVIRONMENTS: dict[str, dict[str, str]] = {
    "plain": {},
    "another hash seed": {"PYTHONHASHSEED": "1"},
    "and another": {"PYTHONHASHSEED": "4294967295"},
    "another time zone": {"TZ": "Pacific/Kiritimati", "SOURCE_DATE_EPOCH": "1"},
    "no locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
    "one thread": {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    "two threads": {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
    "an older processor": {"NPY_DISABLE_CPU_FEATURES": " ".join(EXTENSIONS)},
    "optimized": {"PYTHONOPTIMIZE": "2"},
}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The checkpoint somewhere else, its files made in another order, at another time and with other permissions."""
    copy = tmp_path / "qsourceq" / "deeper"
    copy.mkdir(parents=True)
    for file in sorted((ASSETS / MODEL).iterdir(), reverse=True):
        shutil.copyfile(file, copy / file.name)
        os.utime(copy / file.name, (1, 1))
        (copy / file.name).chmod(0o600)
    return copy


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_environment_shows_nowhere_in_the_bundle(
    source: Path, tmp_path: Path, tiny_bundle: Callable[[str], Path], name: str
):
    output = tmp_path / "qoutputq" / f"b{len(name)}"
    paths = [str(Path(__file__).parents[1]), *(path for path in sys.path if path)]
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "OMP_", "PYTHON"))
    }
    environment = {**inherited, **MACHINE, "PYTHONPATH": os.pathsep.join(paths), **ENVIRONMENTS[name]}
    cpus = "1" if name == "one thread" else "64"
    command = [
        sys.executable,
        "-c",
        BUILD,
        os.path.relpath(source, tmp_path) if len(name) % 2 else str(source),
        str(output),
        cpus,
    ]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr
    here = tiny_bundle(MODEL)
    assert open_bundle(output).bundle_id == open_bundle(here).bundle_id
    ours, theirs = ({p.relative_to(one): p.read_bytes() for p in own_files(one)} for one in (output, here))
    assert ours == theirs
    for path, data in contents(output).items():  # with the provenance, which does say of which repository it is
        for secret in NAMES:
            assert secret not in data, f"{path} holds {secret!r}"


def test_what_a_person_should_know_names_no_directory_either(source: Path, tmp_path: Path):
    """Notes go into the manifest: of a weight file that was passed over, and of a chat template that stands twice."""
    (source / "consolidated.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    config = source / "tokenizer_config.json"
    config.write_text(
        config.read_text(encoding="utf-8").replace("{", '{"chat_template": "other",', 1), encoding="utf-8"
    )
    bundle = build_bundle(source, tmp_path / "qoutputq")
    manifest = (bundle / "manifest.json").read_bytes()
    assert open_bundle(bundle).manifest["source"]["notes"]
    for secret in (b"qsourceq", b"qoutputq", str(tmp_path).encode()):
        assert secret not in manifest
