"""Which files are looked at: text by its name, below what was named, once, and in bundles only what they took over."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from qpack_packager.check.paths import find_files
from qpack_schemas.errors import UsageError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors", "sub/README.md", ".git/x.json", ".hidden/x.json", "run.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def found(*paths: Path) -> list[Path]:
    return [each.path for each in find_files(paths)[0]]


def test_a_directory_gives_its_text_files_and_no_hidden_ones(model: Path):
    assert found(model) == [model / "config.json", model / "sub/README.md"]


def test_a_file_that_is_named_is_looked_at_unless_its_name_says_that_it_is_no_text(model: Path):
    named = [model / "config.json", model / ".git/x.json", model / "model.safetensors", model / "run.py"]
    files, passed_over = find_files(named)
    assert [each.path for each in files] == named[:2]
    assert passed_over == 2


def test_a_file_that_is_named_twice_is_looked_at_once(model: Path):
    assert found(model / "sub/../config.json", model, model / "config.json") == [
        model / "sub/../config.json",
        model / "sub/README.md",
    ]


def test_a_path_that_does_not_exist_is_usage(model: Path):
    with pytest.raises(UsageError, match="missing"):
        found(model, model / "missing")


def test_links_to_files_are_followed_and_links_to_directories_are_not(model: Path):
    (model / "linked.json").symlink_to("config.json")
    (model / "loop").symlink_to(".")
    (model / "broken.json").symlink_to("nowhere")
    names = ["broken.json", "config.json", "linked.json", "sub/README.md"]
    assert found(model) == [model / name for name in names]
    assert found(model / "broken.json") == [model / "broken.json"]


def test_of_a_bundle_only_the_checkpoints_own_text_is_looked_at(tiny_bundle: Callable[[str], Path], tmp_path: Path):
    bundle = tmp_path / "build" / "bundle"
    shutil.copytree(tiny_bundle("tiny-qwen3"), bundle)
    (tmp_path / "README.md").touch()
    for start in (tmp_path, bundle, bundle / "model"):
        files = [each for each in find_files([start])[0] if each.bundle]
        assert {each.path.relative_to(bundle).parts[0] for each in files} <= {"model", "LICENSES"}
        assert {each.bundle for each in files} == {bundle}
        assert bundle / "model/config.json" in [each.path for each in files]
    assert [each.path for each in find_files([tmp_path])[0] if not each.bundle] == [tmp_path / "README.md"]
    assert find_files([bundle / "model/config.json"])[0][0].bundle == bundle
