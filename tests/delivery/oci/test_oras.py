"""Another client of registries, oras: what one pushes, the other reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qpack_delivery.oci.pull import pull
from qpack_delivery.oci.push import push
from qpack_delivery.oci.reference import Reference
from qpack_schemas.errors import IntegrityError

from .bundles_made import contents

# oras opens files without naming an encoding, so it runs where that is allowed.
ORAS = """
import sys
from oras.client import OrasClient
what, target, *names = sys.argv[1:]
client = OrasClient(insecure=True, hostname=target.partition("/")[0])
if what == "pull":
    client.pull(target=target, outdir=names[0])
else:
    client.push(target=target, files=names, disable_path_validation=True)
"""


def oras(*arguments: str, folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-c", ORAS, *arguments]
    ran = subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode("utf-8", "replace")


def test_oras_pulls_what_qpack_pushes(bundle: Path, place: Reference, tmp_path: Path):
    push(bundle, place)
    oras("pull", str(place), str(tmp_path / "pulled"), folder=tmp_path)
    assert contents(tmp_path / "pulled") == contents(bundle)


def test_what_oras_pushes_is_read_and_what_it_lacks_is_named(bundle: Path, place: Reference, tmp_path: Path):
    """oras drops the folders of names, so that it can't push a whole bundle."""
    names = [f"{name}:application/octet-stream" for name in ("manifest.json", "quant_log.jsonl")]
    oras("push", str(place), *names, folder=bundle)
    with pytest.raises(IntegrityError, match="the registry has no layer for it"):
        pull(place, tmp_path / "bundle")
    assert os.listdir(tmp_path) == ["docker"]
