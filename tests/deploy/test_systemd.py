"""The unit, as systemd reads it. Whether it starts is for a host that systemd runs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "qpack-runtime.service"
EXPOSURE = 20  # tenths: up to 2.0 of 10, where systemd says "OK"

pytestmark = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="this host has no systemd-analyze")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """With a program that this host has."""
    text = UNIT.read_text(encoding="utf-8")
    assert "ExecStart=/opt/qpack/bin/qpack-runtime " in text
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/opt/qpack/bin/qpack-runtime", sys.executable), encoding="utf-8")
    return copy


def analyzed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *arguments]
    return subprocess.run(command, check=False, capture_output=True, encoding="utf-8")


def test_systemd_knows_every_line(unit: Path):
    ran = analyzed("verify", "--man=no", unit)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_service_can_reach_little(unit: Path):
    ran = analyzed("security", "--offline=yes", f"--threshold={EXPOSURE}", unit)
    assert ran.returncode == 0, ran.stdout
