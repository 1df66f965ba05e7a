"""Compiled kernels kept between builds: what was put, or nothing."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_packager.cuda.compiler.cache import KernelCache, default_folder, digest_sources, key
from qpack_packager.cuda.compiler.compiled import CompiledKernel
from qpack_packager.cuda.spec import KernelSpec
from qpack_packager.cuda.targets import Target
from qpack_schemas.errors import UsageError

KEY = "0" * 64
SPEC = KernelSpec("samples.add", (("x", "*fp32"),), (("BLOCK", 64),))
NUMBER = st.integers(0, 2**20)
KERNELS = st.builds(CompiledKernel, st.binary(max_size=200), NUMBER, st.none() | NUMBER, st.none() | NUMBER)


@given(kernel=KERNELS)
def test_what_was_put_is_got(kernel: CompiledKernel, tmp_path_factory: pytest.TempPathFactory):
    cache = KernelCache(tmp_path_factory.mktemp("cache") / "made" / "when needed")
    assert cache.get(KEY) is None
    cache.put(KEY, kernel)
    assert cache.get(KEY) == kernel
    assert cache.get("1" * 64) is None


@given(kernel=KERNELS, data=st.data())
def test_an_entry_with_any_byte_changed_lost_or_added_counts_as_none(
    kernel: CompiledKernel, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
):
    cache = KernelCache(tmp_path_factory.mktemp("cache"))
    cache.put(KEY, kernel)
    entry = cache.folder / KEY
    whole = entry.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([whole[place] ^ data.draw(st.integers(1, 255))])
    for damaged in (whole[:place] + flipped + whole[place + 1 :], whole[:place], whole + b"\n", whole[1:]):
        entry.write_bytes(damaged)
        assert cache.get(KEY) is None


def test_an_entry_under_anothers_name_counts_as_none(tmp_path: Path):
    cache = KernelCache(tmp_path)
    cache.put(KEY, CompiledKernel(b"image", 0, 1, 0))
    (tmp_path / KEY).rename(tmp_path / ("1" * 64))
    assert cache.get("1" * 64) is None


def test_a_writer_that_dies_leaves_the_old_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def dies(handle: int) -> None:
        raise OSError(28, "No space left on device")

    cache, old = KernelCache(tmp_path), CompiledKernel(b"old", 0, 1, 0)
    cache.put(KEY, old)
    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(OSError, match="No space left"):
        cache.put(KEY, replace(old, image=b"new"))
    assert cache.get(KEY) == old
    assert [path.name for path in tmp_path.iterdir()] == [KEY]


def test_the_key_follows_everything_that_a_kernel_is_made_from():
    compilers = {"triton": "3.9.0", "ptxas": "12.9.86"}
    keys = [
        key(SPEC, Target(89), compilers, "a"),
        key(SPEC, Target(89), compilers, "b"),
        key(SPEC, Target(89), compilers | {"triton": "3.9.1"}, "a"),
        key(SPEC, Target(89), compilers | {"ptxas": "12.9.87"}, "a"),
        key(SPEC, Target(86), compilers, "a"),
        key(SPEC, Target(89, "ptx"), compilers, "a"),
        *(
            key(replace(SPEC, **change), Target(89), compilers, "a")
            for change in (
                {"function": "other.add"},
                {"types": (("x", "*bf16"),)},
                {"constants": (("BLOCK", 128),)},
                {"constants": (("BLOCK", None),)},
                {"warps": 8},
                {"stages": 3},
                {"fp_fusion": False},
            )
        ),
    ]
    assert len(set(keys)) == len(keys)
    assert key(SPEC, Target(89), dict(reversed(compilers.items())), "a") == keys[0]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """package("one"): the folder of an importable package with two modules, the same in each."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str) -> Path:
        (tmp_path / name / "inner").mkdir(parents=True)
        for file in ("__init__.py", "kernel.py", "inner/helper.py"):
            (tmp_path / name / file).write_text(f"# {file}\n", encoding="utf-8")
        return tmp_path / name

    return make


def test_sources_are_the_same_wherever_they_lie_and_differ_in_any_module(package: Callable[[str], Path]):
    package("one")
    two = package("two")
    whole = digest_sources("one")
    assert digest_sources("two") == whole
    (two / "inner" / "helper.py").write_text("# changed\n", encoding="utf-8")
    changed = digest_sources("two")
    (two / "inner" / "helper.py").rename(two / "inner" / "renamed.py")
    assert len({whole, changed, digest_sources("two")}) == 3


def test_the_default_folder_follows_the_xdg_specification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "qpack" / "kernels"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_folder() == tmp_path / "home" / ".cache" / "qpack" / "kernels"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(UsageError, match="set XDG_CACHE_HOME"):
        default_folder()
