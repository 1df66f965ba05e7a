"""The action that builds: what it makes of a model, of its inputs, and of a build that fails."""

import hashlib
import json

import pytest

from bundles import ASSETS
from qpack_schemas.bundle import open_bundle
from workflow_steps import ROOT, run_action

MODEL = ASSETS / "tiny-qwen3"
SMALL = "--batch\n1,2\n--context\n64\n--prefill\n16"
COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"


def test_a_model_becomes_a_bundle_a_report_and_a_summary(host):
    ran = run_action(host, "build", {"model": str(MODEL), "arguments": SMALL, "artifact": "bundle"})
    assert not ran.failed, ran.log
    made = open_bundle(host.workspace / "bundle")
    assert ran.outputs == {"bundle": "bundle", "bundle-id": made.bundle_id, "report": "bundle.html"}
    assert (host.workspace / "bundle.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert ran.summary.startswith("## qpack build\n")
    assert f"| bundle_id | `{made.bundle_id}` |" in ran.summary
    assert "| serves | 2 slots of 64 positions, 3 buckets |" in ran.summary
    assert "All 5 text files were UTF-8." in ran.summary
    (uploaded,) = ran.uses["actions/upload-artifact"]
    assert (uploaded["name"], uploaded["path"].split()) == ("bundle", ["bundle", "bundle.html"])
    assert [text.removeprefix(str(ROOT)) for text in host.installed] == ["/.github/actions/build/../../..[packager]"]
    assert "actions/cache" not in ran.uses


@pytest.mark.nightly
def test_what_was_measured_is_in_the_summary(host):
    (host.workspace / "held out.txt").write_bytes((MODEL / "eval.txt").read_bytes()[:3000])
    gate = {"eval": "held out.txt", "max-ppl-ratio": "1.1", "max-kl": "0.1"}
    ran = run_action(host, "build", {"model": str(MODEL), "arguments": SMALL} | gate)
    assert not ran.failed, ran.log
    measured = json.loads((host.workspace / "bundle" / "quality.json").read_text(encoding="utf-8"))
    assert f"| KL divergence, mean | {measured['kl_mean']:.6g} | 0.1 |" in ran.summary
    assert "Gate: passed." in ran.summary
    assert host.installed[0].endswith("[packager,runtime,quality]")


def test_a_missed_gate_fails_and_says_what_missed(host, noted):
    said = {"error": {"message": "the bundle missed its gate", "where": "bundle", "remedy": "", "exit_code": 3}}
    said["error"]["findings"] = [{"where": "kl_mean", "message": "0.2 is more than 0.1 | allowed"}]
    noted(build=(3, json.dumps(said)))
    ran = run_action(host, "build", {"model": str(MODEL), "artifact": "bundle"})
    assert ran.failed
    assert "| message | the bundle missed its gate |" in ran.summary
    assert "| kl_mean | 0.2 is more than 0.1 \\| allowed |" in ran.summary
    assert "actions/upload-artifact" not in ran.uses
    assert ran.outputs == {"bundle": "", "bundle-id": "", "report": ""}


def test_a_wrong_encoding_fails_before_anything_is_built(host):
    model = host.workspace / "model"
    model.mkdir()
    (model / "README.md").write_bytes("模型说明".encode("gb18030"))
    ran = run_action(host, "build", {})
    assert ran.failed
    assert "::error" in ran.log
    assert not (host.workspace / "bundle").exists()
    assert ran.summary == ""
    assert run_action(host, "build", {"check": "false"}).summary != ""


def test_each_input_reaches_qpack_as_it_is(host, noted):
    calls = noted(build=(0, "{}"))
    inputs = {
        "model": "a model",
        "output": "out",
        "recipe": "qwen3-small",
        "targets": "cpu\n\ncuda:sm_89",
        "eval": "held out.txt",
        "max-ppl-ratio": "1.05",
        "max-kl": "0.02",
        "encodings": "README*=gb18030\n$(id)=cp1252",
        "arguments": "--calibration\na text.txt",
        "extras": "tracing",
        "cache": "false",
    }
    run_action(host, "build", inputs)
    check, build, *_ = calls()
    assert check == [
        "check", "--format", "github", "--encoding", "README*=gb18030", "--encoding", "$(id)=cp1252", "--", "a model",
    ]  # fmt: skip
    assert build == [
        "build", "--output", "out", "--kernel-cache", f"{host.temp}/qpack-kernels", "--progress", "plain",
        "--format", "json", "--recipe", "qwen3-small", "--eval", "held out.txt", "--max-ppl-ratio", "1.05",
        "--max-kl", "0.02", "--target", "cpu", "--target", "cuda:sm_89", "--encoding", "README*=gb18030",
        "--encoding", "$(id)=cp1252", "--calibration", "a text.txt", "--", "a model",
    ]  # fmt: skip
    assert host.installed[0].endswith("[packager,kernels,runtime,quality,tracing]")


def test_a_model_of_the_hub_is_fetched_by_its_commit(host, hub, noted):
    hub(MODEL)
    calls = noted(build=(1, ""))
    ran = run_action(host, "build", {"hub": "Qwen/Qwen3-0.6B", "revision": COMMIT})
    assert [(call[0], call[-1]) for call in calls()] == [("check", "model"), ("build", "model")], ran.log
    fetched = (host.folder / "fetched").read_text(encoding="utf-8").split()
    assert fetched == ["download", "Qwen/Qwen3-0.6B", "--revision", COMMIT, "--local-dir", "model"]
    assert {file.name for file in (host.workspace / "model").iterdir()} == {file.name for file in MODEL.iterdir()}
    assert ran.uses["actions/cache"] == [{"path": "model", "key": f"qpack-model-Qwen/Qwen3-0.6B-{COMMIT}"}]


def test_a_model_that_the_cache_has_is_not_fetched(host, noted):
    noted(build=(1, ""))
    inputs = {"hub": "Qwen/Qwen3-0.6B", "revision": COMMIT, "check": "false"}
    run_action(host, "build", inputs, model={"cache-hit": "true"})
    assert not (host.folder / "fetched").exists()


@pytest.mark.parametrize("revision", ["", "main", "v1.0", COMMIT[:12]])
def test_a_branch_is_no_revision(host, hub, revision: str):
    hub(MODEL)
    ran = run_action(host, "build", {"hub": "Qwen/Qwen3-0.6B", "revision": revision})
    assert ran.failed
    assert "must be a commit" in ran.log
    assert not (host.folder / "fetched").exists()


def test_kernels_are_kept_under_what_they_are_made_from(host, noted):
    noted(build=(1, ""))
    recipe = host.workspace / "recipe.yaml"
    recipe.write_text("slots: 4\n", encoding="utf-8")

    def key(**inputs: str) -> str:
        ran = run_action(host, "build", {"model": str(MODEL), "targets": "cuda:sm_89", "check": "false"} | inputs)
        (cache,) = ran.uses["actions/cache"]
        assert cache["path"] == f"{host.temp}/qpack-kernels"
        assert cache["key"].startswith(cache["restore-keys"])
        assert cache["restore-keys"] == "qpack-kernels-0.1.0-"
        return cache["key"]

    plain = key()
    assert key() == plain
    with_recipe = key(recipe="recipe.yaml")
    recipe.write_text("slots: 8\n", encoding="utf-8")
    others = {with_recipe, key(recipe="recipe.yaml"), key(targets="cuda:sm_90"), key(arguments="--slots\n2")}
    assert len(others | {plain}) == 5
    assert len(plain) == len("qpack-kernels-0.1.0-") + len(hashlib.sha256().hexdigest())
