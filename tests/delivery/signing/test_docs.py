"""docs/signing.md: its `sh` blocks run as they stand, one after the other, and what it quotes is what is said."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

from signatures import REFUSALS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "signing.md").read_text(encoding="utf-8")
PROGRAMS = {"qpack": "qpack_packager", "qpack-runtime": "qpack_runtime"}


def test_every_command_of_the_page_runs(unsigned: Path, tmp_path: Path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, package in PROGRAMS.items():
        program = programs / name
        program.write_text(f"#!{sys.executable}\nfrom {package}.cli import main\nmain()\n", encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    variables = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", "".join(blocks)],
        cwd=unsigned.parent, env=variables, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "is whole and signed" in ran.stdout


def test_each_refusal_stands_in_the_page_as_it_is_said():
    sources = (ROOT / "delivery/qpack_delivery/signing").glob("*.py")
    source = "".join(path.read_text(encoding="utf-8") for path in sources)
    rows = re.findall(r"^\| 8: (.*?) \|", PAGE, re.MULTILINE)
    quoted = [quote for row in rows for quote in re.findall("`(.*?)`", row)]
    assert len(quoted) >= len(REFUSALS)
    for quote in quoted:
        assert quote in source, quote
