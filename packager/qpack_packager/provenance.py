"""provenance.intoto.jsonl: from what, by whom and how a bundle was built, as an in-toto statement for `qpack sign`.

Its subject is the bundle_id, so it lies beside the bundle's own files. Format: https://slsa.dev/spec/v1.0/provenance in
https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md. No time is in it: the same build in the same
repository gives the same bytes.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.serving import Options
from qpack_schemas.bundle_files import MANIFEST, sha256_of
from qpack_schemas.manifest import SourceFile
from qpack_schemas.strict_json import JsonValue

PROVENANCE = "provenance.intoto.jsonl"
# Where CI systems say what they build: commit, repository, the job's definition, and its run.
_SYSTEMS = (
    ("GITHUB_SHA", "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}", "{GITHUB_SERVER_URL}/{GITHUB_WORKFLOW_REF}",
     "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}/attempts/{GITHUB_RUN_ATTEMPT}"),
    ("CI_COMMIT_SHA", "{CI_PROJECT_URL}", "{CI_PROJECT_URL}/-/blob/{CI_COMMIT_SHA}/.gitlab-ci.yml", "{CI_JOB_URL}"),
    ("GIT_COMMIT", "{GIT_URL}", "{JENKINS_URL}", "{BUILD_URL}"),
)  # fmt: skip


def provenance(
    bundle_id: str,
    options: Options,
    sources: Sequence[SourceFile],
    text: ModelText,
    *,
    recipe: Path | None = None,
    eval_text: Path | None = None,
) -> dict[str, JsonValue]:
    """The statement. Files that were named by flags are told by name and digest, not by where they lay; of `text` the
    encodings that were declared."""
    named = {"recipe": recipe, "tuning": options.tuning, "calibration": options.calibration, "eval": eval_text}
    given = {name: path for name, path in named.items() if path is not None}
    flags = {
        **asdict(options),
        "encodings": [f"{glob}={codec}" for glob, codec in text.declared.pairs],
        "legacy_encodings": text.legacy,
    }
    asked: dict[str, JsonValue] = {
        name: value for name, value in flags.items() if value and not isinstance(value, Path)
    }
    repository, builder, run = _job()
    inputs: list[JsonValue] = [
        *([repository] if repository else []),
        *({"name": f"{name}: {path.name}", "digest": {"sha256": sha256_of(path)}} for name, path in given.items()),
        *({"name": f"checkpoint: {file['path']}", "digest": {"sha256": file["sha256"]}} for file in sources),
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": MANIFEST, "digest": {"sha256": bundle_id}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:qpack:build.v1",
                "externalParameters": {"options": asked, **{name: path.name for name, path in given.items()}},
                "resolvedDependencies": inputs,
            },
            "runDetails": {
                "builder": {"id": builder, "version": {"qpack-llm": version("qpack-llm")}},
                **({"metadata": {"invocationId": run}} if run else {}),
            },
        },
    }


def _job() -> tuple[dict[str, JsonValue] | None, str, str | None]:
    """The repository that the build ran in, with its revision; who built; and the run."""
    for commit, repository, builder, run in _SYSTEMS:
        if revision := os.environ.get(commit):
            uri, by, which = (_filled(text, os.environ) for text in (repository, builder, run))
            return _revision(uri, revision), by or "urn:qpack:builder.unknown", which
    revision = _git("rev-parse", "HEAD")
    changed = bool(_git("status", "--porcelain", "--untracked-files=no"))
    found = _revision(_git("remote", "get-url", "origin"), revision, changed=changed) if revision else None
    return found, "urn:qpack:builder.local", None


def _filled(text: str, values: Mapping[str, str]) -> str | None:
    """`text` with every {NAME}; None if one is not set."""
    try:
        return text.format_map(values)
    except KeyError:
        return None


def _revision(remote: str | None, commit: str, *, changed: bool = False) -> dict[str, JsonValue]:
    """Without what a remote may hold of a user, a token say; and without one that is a directory of this machine."""
    shared = re.fullmatch(r"(?:(https?|ssh|git)://)?(?:[^/@]*@)?([^/:]+(?::[0-9]+)?[/:].+)", remote or "")
    local = not shared or not (shared[1] or "@" in (remote or ""))
    uri = (
        None
        if local or not shared
        else f"{shared[1] or 'ssh'}://{shared[2] if shared[1] else shared[2].replace(':', '/', 1)}"
    )
    return {
        "name": "source repository",
        **({"uri": f"git+{uri}"} if uri else {}),
        "digest": {"gitCommit": commit},
        **({"annotations": {"changed": True}} if changed else {}),
    }


def _git(*arguments: str) -> str | None:
    """What git says of the directory that the build was started in; None if it says nothing."""
    try:
        ran = subprocess.run(["git", *arguments], capture_output=True, encoding="utf-8", errors="replace", check=False)
    except OSError:
        return None
    return (ran.stdout.strip() or None) if ran.returncode == 0 else None
