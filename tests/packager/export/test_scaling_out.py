"""docs/scaling-out.md: its qpack commands run, its manifest is YAML whose names fit, and its numbers are right."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from bundles import SMALL
from qpack_packager.cli import main
from qpack_schemas.bundle import open_bundle

from .conftest import Built

TEXT = (Path(__file__).parents[3] / "docs" / "scaling-out.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
SIZES = ("--batch", "1", "--context", "64", "--prefill", "16")


def test_its_commands_run(built: Callable[[str], Built], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And what it says of the way back, `qpack build checkpoint`, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "BUNDLE").symlink_to(built("tied, int8 both").bundle)
    exports = [command for command in COMMANDS if command.startswith("qpack ")]
    assert exports == ["qpack export BUNDLE -o checkpoint --format compressed-tensors"]
    for command in [*exports, f"qpack build checkpoint -o again {' '.join(SIZES)}"]:
        result = CliRunner().invoke(main, shlex.split(command)[1:])
        assert result.exit_code == 0, result.stderr
    assert open_bundle(tmp_path / "again").manifest["slots"] == 1 < SMALL.slots  # type: ignore[operator]


def test_the_manifest_serves_what_the_commands_serve():
    ((_, text),) = [block for block in BLOCKS if block[0] == "yaml"]
    deployment, service = list[Any](yaml.safe_load_all(text))
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    vllm = next(command for command in COMMANDS if command.startswith("vllm "))
    assert [*container["command"]] == shlex.split(vllm.replace(" checkpoint ", " /models/qwen "))
    gpus = container["command"][container["command"].index("--tensor-parallel-size") + 1]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["containerPort"]
    volumes = {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_the_card_and_the_document_name_the_same_commands(built: Callable[[str], Built]):
    card = (built("tied, int8 both").export("gptq") / "README.md").read_text(encoding="utf-8")
    for start in ("vllm serve ", "python3 -m sglang.launch_server "):
        ours, shown = (
            next(line for line in text.splitlines() if line.startswith(start)) for text in ("\n".join(COMMANDS), card)
        )
        assert ours.replace("checkpoint", "DIR").startswith(shown)
