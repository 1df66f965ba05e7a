"""From what and by whom a bundle was built: an in-toto statement with SLSA's provenance."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from bundles import ASSETS, SMALL
from qpack_packager.build import build
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.declared_encodings import DeclaredEncodings
from qpack_packager.progress import Progress
from qpack_packager.provenance import PROVENANCE, provenance
from qpack_packager.recipe import find_recipe
from qpack_packager.source_files import SourceFiles
from qpack_schemas.bundle import open_bundle
from qpack_schemas.bundle_files import sha256_of

TINY = ASSETS / "tiny-qwen3"
JOBS = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT")


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in JOBS:
        monkeypatch.delenv(name, raising=False)


def told(text: ModelText | None = None, **given) -> dict:
    text = text or ModelText(TINY)
    with SourceFiles(TINY, ["config.json"]) as hashing:
        sources = hashing.all(Progress("plain"))
    statement = provenance("0" * 64, SMALL, sources, text, **given)
    return json.loads(json.dumps(statement))["predicate"]


def repository(predicate: dict) -> dict:
    (found,) = [one for one in predicate["buildDefinition"]["resolvedDependencies"] if "gitCommit" in one["digest"]]
    return found


def test_its_subject_is_the_bundle_and_it_is_no_part_of_it(tmp_path: Path):
    recipe = find_recipe("qwen3-small")
    bundle_id = build(ModelText(TINY), tmp_path / "bundle", SMALL, Progress("plain"), recipe=recipe).bundle_id
    (line,) = (tmp_path / "bundle" / PROVENANCE).read_text(encoding="utf-8").splitlines()
    statement = json.loads(line)
    assert statement["subject"] == [{"name": "manifest.json", "digest": {"sha256": bundle_id}}]
    assert hashlib.sha256((tmp_path / "bundle" / "manifest.json").read_bytes()).hexdigest() == bundle_id
    assert PROVENANCE not in {file["path"] for file in open_bundle(tmp_path / "bundle").manifest["files"]}
    inputs = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    digests = {one["name"]: one["digest"].get("sha256") for one in inputs}
    assert digests["recipe: qwen3-small.yaml"] == sha256_of(recipe)
    assert digests["checkpoint: model.safetensors"] == sha256_of(TINY / "model.safetensors")


def test_declared_encodings_are_told_as_the_flags_that_they_were():
    asked = told()["buildDefinition"]["externalParameters"]["options"]
    assert not {"encodings", "legacy_encodings"} & asked.keys()
    text = ModelText(TINY, DeclaredEncodings.parse(["*.txt=cp1252", "a.txt=big5"]), ["gb18030"])
    declared = told(text)["buildDefinition"]["externalParameters"]["options"]
    assert declared == {**asked, "encodings": ["*.txt=cp1252", "a.txt=big5"], "legacy_encodings": ["gb18030"]}


def test_a_github_job_is_named_with_its_workflow_and_its_run(monkeypatch: pytest.MonkeyPatch):
    job = {
        "GITHUB_SHA": "a" * 40,
        "GITHUB_SERVER_URL": "https://github.example",
        "GITHUB_REPOSITORY": "team/models",
        "GITHUB_WORKFLOW_REF": "team/models/.github/workflows/bundle.yml@refs/heads/main",
        "GITHUB_RUN_ID": "7",
        "GITHUB_RUN_ATTEMPT": "2",
    }
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    predicate = told()
    assert repository(predicate) == {
        "name": "source repository",
        "uri": "git+https://github.example/team/models",
        "digest": {"gitCommit": "a" * 40},
    }
    details = predicate["runDetails"]
    assert details["builder"]["id"] == "https://github.example/" + job["GITHUB_WORKFLOW_REF"]
    assert details["metadata"]["invocationId"] == "https://github.example/team/models/actions/runs/7/attempts/2"


@pytest.mark.parametrize(
    ("remote", "uri"),
    [
        ("https://github.example/team/models.git", "git+https://github.example/team/models.git"),
        ("https://ci:s3cret@github.example:8443/team/models", "git+https://github.example:8443/team/models"),
        ("https://s3cret@github.example/team/models", "git+https://github.example/team/models"),
        ("git@github.example:team/models.git", "git+ssh://github.example/team/models.git"),
        ("ssh://git@github.example/team/models", "git+ssh://github.example/team/models"),
        ("/srv/models", None),
        ("../models", None),
        ("file:///srv/models", None),
    ],
)
def test_a_local_repository_is_named_without_secrets_and_without_paths(
    remote: str, uri: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def git(*arguments: str) -> str:
        name = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        ran = subprocess.run(
            ["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True, encoding="utf-8"
        )
        return ran.stdout.strip()

    git("init", "-q")
    (tmp_path / "recipe.yaml").write_text("slots: 2\n", encoding="utf-8")
    git("add", ".")
    git("commit", "-qm", "Begin")
    git("remote", "add", "origin", remote)
    monkeypatch.chdir(tmp_path)
    found = repository(told())
    assert found.get("uri") == uri
    assert found["digest"] == {"gitCommit": git("rev-parse", "HEAD")}
    assert "annotations" not in found
    (tmp_path / "recipe.yaml").write_text("slots: 3\n", encoding="utf-8")
    assert repository(told())["annotations"] == {"changed": True}


def test_outside_of_a_repository_no_revision_is_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    predicate = told()
    assert all("gitCommit" not in one["digest"] for one in predicate["buildDefinition"]["resolvedDependencies"])
    assert predicate["runDetails"]["builder"]["id"] == "urn:qpack:builder.local"
