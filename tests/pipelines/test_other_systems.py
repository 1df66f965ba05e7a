"""The pipelines for GitLab and Jenkins: their scripts, taken out of the files and run."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml

from bundles import ASSETS
from oci_registry import running_registry
from qpack_schemas.bundle import open_bundle
from signatures import make_keys
from workflow_steps import ROOT, Host

GITLAB: dict[str, Any] = yaml.safe_load((ROOT / "deploy/gitlab/qpack.gitlab-ci.yml").read_text(encoding="utf-8"))
JENKINSFILE = ROOT / "deploy" / "jenkins" / "Jenkinsfile"
MODEL = ASSETS / "tiny-qwen3"
Scripts = tuple[list[tuple[str, dict[str, str]]], str]


def gitlab(host: Host, address: str, key: Path) -> Scripts:
    """The script of each job with its variables, which GitLab puts into one another; and where the bundle goes."""
    known = {
        "CI_PROJECT_DIR": str(host.workspace),
        "CI_REGISTRY": address,
        "CI_REGISTRY_IMAGE": f"{address}/group/project",
        "CI_REGISTRY_USER": "robot",
        "CI_REGISTRY_PASSWORD": "sesame",
        "CI_COMMIT_TAG": "v1.4.0",
        "SIGNING_KEY": str(key),
    }
    scripts = []
    for job in ("bundle", "publish"):
        variables = known | GITLAB["variables"] | GITLAB[job].get("variables", {})
        variables = {name: Template(value).safe_substitute(variables) for name, value in variables.items()}
        lines = GITLAB[job]["before_script"] + GITLAB[job]["script"]
        scripts.append(("\n".join(lines), variables))
    return scripts, f"{address}/group/project/bundle"


def jenkins(host: Host, address: str, key: Path) -> Scripts:
    """The `sh` steps, which Groovy leaves alone but for its escapes, with the variables of the pipeline."""
    text = JENKINSFILE.read_text(encoding="utf-8")
    found = re.search(r"environment \{(.*?)\n  \}", text, re.DOTALL)
    assert found
    variables = dict(re.findall(r"(\w+) = '(.*?)'", found[1])) | {
        "HOME": str(host.workspace),
        "WORKSPACE": str(host.workspace),
        "WORKSPACE_TMP": str(host.temp),
        "TAG_NAME": "v1.4.0",
        "SIGNING_KEY": str(key),
        "REGISTRY_USER": "robot",
        "REGISTRY_PASSWORD": "sesame",
        "REFERENCE": f"{address}/models/qwen3",
    }
    steps = [step.replace("\\\\", "\\") for step in re.findall(r"sh '''(.*?)'''", text, re.DOTALL)]
    assert len(steps) == 2
    return [(f"set -x\n{step}", variables) for step in steps], variables["REFERENCE"]


systems = pytest.mark.parametrize("system", [gitlab, jenkins])


def run(host: Host, scripts: Scripts) -> str:
    """All scripts; gives what they said."""
    said = ""
    for script, variables in scripts[0]:
        ran = host.run(script, variables)
        said += ran.stdout + ran.stderr
        assert ran.returncode == 0, said
    return said


@systems
def test_its_commands_are_qpacks_and_build_comes_before_sign_before_push(
    host: Host, hub: Callable[[Path], None], noted: Callable[..., Callable[[], list[list[str]]]], system
):
    hub(MODEL)
    calls = noted(push=(0, "{}"))
    run(host, system(host, "127.0.0.1:5000", host.folder / "key.pem"))
    order = ["check", "build", "validate", "inspect", "sign", "verify", "push"]
    assert [call[0] for call in calls()] == order
    sign = calls()[order.index("sign")]
    assert sign[sign.index("--version") + 1] == "1.4.0"
    assert host.installed[0] == "qpack-llm[packager,runtime,kernels,quality]==0.1.0"
    commit = (host.folder / "fetched").read_text(encoding="utf-8").split()[3]
    assert re.fullmatch("[0-9a-f]{40}", commit)


@pytest.mark.nightly
@systems
def test_a_model_gets_into_a_registry(host: Host, hub: Callable[[Path], None], system, tmp_path: Path):
    hub(MODEL)
    keys = make_keys(host.folder)
    shutil.copy(keys.public, host.workspace / "release.pub")
    (host.workspace / "held-out.txt").write_bytes((MODEL / "eval.txt").read_bytes()[:3000])
    folder = tmp_path / "registry"
    folder.mkdir()
    with running_registry(folder, password=True) as registry:
        scripts = system(host, registry.address, keys.private)
        said = run(host, scripts)
        assert "sesame" not in said
        assert registry.requests("PUT", f"{scripts[1].partition('/')[2]}/manifests/v1.4.0") == [201]
    made = open_bundle(host.workspace / "bundle")
    assert made.bundle_id in (host.workspace / "pushed.json").read_text(encoding="utf-8")
    assert '"max_kl": 0.05' in (host.workspace / "bundle" / "manifest.json").read_text(encoding="utf-8")
