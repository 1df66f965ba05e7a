"""The workflows: what they may do, what they hand on, and that what their steps run is there."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from workflow_steps import GITHUB, ROOT, Host, run_steps

WORKFLOWS = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in (GITHUB / "workflows").iterdir()}
ACTIONS = {
    file.parent.name: yaml.safe_load(file.read_text(encoding="utf-8")) for file in GITHUB.glob("actions/*/*.yml")
}
JOBS = [(name, job) for workflow in WORKFLOWS.values() for name, job in workflow["jobs"].items()]
ALL_STEPS = [step for _, job in JOBS for step in job["steps"]]
ALL_STEPS += [step for action in ACTIONS.values() for step in action["runs"]["steps"]]
BUNDLE = WORKFLOWS["bundle"]


def test_other_actions_are_used_by_commit_and_each_commit_has_one_version():
    versions: dict[str, set[str]] = {}
    for file in GITHUB.rglob("*.yml"):
        for name, version in re.findall(
            r"uses: (\S+)(?: # (v[\d.]+))?$", file.read_text(encoding="utf-8"), re.MULTILINE
        ):
            if not name.startswith("$/"):
                assert re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40}", name), f"{file}: {name}"
                versions.setdefault(name.partition("@")[0], set()).add(f"{name} {version}")
    assert versions
    assert [found for found in versions.values() if len(found) > 1 or found.pop().endswith(" ")] == []


def test_nothing_that_others_say_gets_into_a_shell():
    for step in ALL_STEPS:
        assert "${{" not in step.get("run", "")


def test_a_job_may_do_only_what_it_asks_for():
    for workflow in WORKFLOWS.values():
        assert workflow["permissions"] in ({}, {"contents": "read"})
    writers = {
        (file, name): sorted(key for key, value in job.get("permissions", {}).items() if value == "write")
        for file, workflow in WORKFLOWS.items()
        for name, job in workflow["jobs"].items()
    }
    assert {place: rights for place, rights in writers.items() if rights} == {
        ("ci", "files"): ["security-events"],
        ("bundle", "publish"): ["packages"],
        ("release", "images"): ["packages"],
        ("release", "image"): ["attestations", "id-token", "packages"],
        ("release", "pypi"): ["attestations", "id-token"],
    }
    assert WORKFLOWS["release"]["jobs"]["pypi"]["environment"] == "pypi"


def test_the_job_that_reads_models_has_no_key():
    build, publish = BUNDLE["jobs"]["build"], BUNDLE["jobs"]["publish"]
    assert re.findall(r"secrets\.([\w-]+)", str(build)) == ["hub-token"]
    assert "signing-key" in str(publish)
    assert build["steps"][-1]["with"]["cache"] == "false"  # nothing that another workflow wrote gets signed


@pytest.mark.parametrize("job", ["build", "publish"])
def test_the_reusable_workflow_hands_on_what_the_actions_take(job: str):
    step = BUNDLE["jobs"][job]["steps"][-1]
    assert step["uses"] == f"$/.github/actions/{job}"
    assert set(step["with"]) <= set(ACTIONS[job]["inputs"])
    call = BUNDLE[True]["workflow_call"]  # YAML 1.1 reads "on" as true
    for name in re.findall(r"inputs\.([\w-]+)", str(BUNDLE["jobs"])):
        assert name in call["inputs"]
    for name in re.findall(r"secrets\.([\w-]+)", str(BUNDLE["jobs"])):
        assert name in call["secrets"]
    for name, text in BUNDLE["jobs"][job]["outputs"].items():
        assert text == f"${{{{ steps.{job}.outputs.{name} }}}}"
        assert name in ACTIONS[job]["outputs"]


def test_the_targets_and_scripts_that_are_run_are_there():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for step in ALL_STEPS:
        for target in re.findall(r"\bmake ([a-z]+)", step.get("run", "")):
            assert target in targets
        for script in re.findall(r"^(?:\S+ )?(scripts/\S+)", step.get("run", ""), re.MULTILINE):
            assert (ROOT / script).stat().st_mode & 0o100


def step_of(workflow: str, job: str, name: str) -> dict[str, Any]:
    return next(step for step in WORKFLOWS[workflow]["jobs"][job]["steps"] if step.get("name") == name)


@pytest.mark.parametrize(
    ("tag", "changes", "right"),
    [
        ("v0.9.0", "## [0.9.0] - 2026-12-01", True),
        ("v0.9.1", "## [0.9.0]", False),
        ("v0.9.0", "## [Unreleased]", False),
    ],
)
def test_a_release_is_the_version_that_it_says(host: Host, tag: str, changes: str, right: bool):
    (host.workspace / "pyproject.toml").write_text('[project]\nversion = "0.9.0"\n', encoding="utf-8")
    (host.workspace / "CHANGELOG.md").write_text(f"# Changelog\n\n{changes}\n", encoding="utf-8")
    step = step_of("release", "packages", "Is the tag the project's version")
    ran = run_steps(host, [step], {"github.ref_name": tag}, Path(), {})
    assert ran.failed is not right, ran.log
    assert right or "::error file=" in ran.log


@pytest.mark.parametrize("bundle_id", ["5f" * 32, ""])
def test_a_bundle_that_changed_between_the_jobs_is_not_signed(host: Host, bundle_id: str):
    (host.workspace / "built" / "bundle").mkdir(parents=True)
    (host.workspace / "built" / "bundle" / "manifest.json").write_text("{}\n", encoding="utf-8")
    step = step_of("bundle", "publish", "Is it what was built")
    right = "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"
    assert run_steps(host, [step], {"needs.build.outputs.bundle-id": bundle_id}, Path(), {}).failed
    assert not run_steps(host, [step], {"needs.build.outputs.bundle-id": right}, Path(), {}).failed


def test_the_examples_in_the_docs_name_what_there_is():
    page = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    workflow, steps = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    call, job = BUNDLE[True]["workflow_call"], workflow["jobs"]["qwen3"]
    required = {name for name, one in call["inputs"].items() if one.get("required")}
    assert required <= set(job["with"]) <= set(call["inputs"])
    assert set(job["secrets"]) <= set(call["secrets"])
    for asked in BUNDLE["jobs"].values():
        assert asked["permissions"].items() <= job["permissions"].items()  # it can only be given less
    assert set(steps["steps"][1]["with"]) <= set(ACTIONS["build"]["inputs"])
