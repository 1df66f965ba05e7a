"""Writing a bundle: whole or not at all, whatever happens to the build; weights that the safetensors library reads."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors import safe_open

from bundles import ASSETS, SMALL, build_bundle, own_files, stored_weights
from qpack_packager import build as build_module
from qpack_packager.bundle_writer import writing
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.progress import Progress
from qpack_packager.weights import shards as shards_module
from qpack_packager.weights.make import Maker
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import UsageError

MODEL = ASSETS / "tiny-qwen3"

# Builds again and again; the n-th build is killed at its n-th sync, which follows every file and folder, until one
# lives. The process forks instead of starting anew, which would take a second each.
KILLED = """
import json, os, signal, sys
from pathlib import Path
from bundles import build_bundle
model, folder = map(Path, sys.argv[1:])
sync, seen = os.fsync, []
for n in range(100):
    output = folder / str(n) / "bundle"
    output.parent.mkdir()
    if not (child := os.fork()):
        left = n
        def dying_sync(handle):
            global left
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            sync(handle)
        os.fsync = dying_sync
        build_bundle(model, output)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    seen.append([os.WTERMSIG(status), os.WEXITSTATUS(status), sorted(os.listdir(output.parent))])
    if not status:
        break
print(json.dumps(seen))
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in own_files(folder)}


def test_where_no_directory_can_be_made_there_is_an_error_and_no_second_try():
    """/proc says of every new directory that its parent is not there."""
    with pytest.raises(OSError, match="No such file or directory: '/proc'"), writing(Path("/proc/bundle")):
        pass


def test_a_build_killed_anywhere_leaves_no_bundle_and_the_next_one_sweeps_up(
    tmp_path: Path, tiny_bundle: Callable[[str], Path]
):
    script = [sys.executable, "-c", KILLED, str(MODEL), str(tmp_path)]
    paths = [str(Path(__file__).parents[1]), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(script, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen[-1] == [0, 0, ["bundle"]]
    whole = contents(tiny_bundle("tiny-qwen3"))
    assert len(seen) > len(whole), "it was killed at fewer places than there are files"
    for n, (signal, _, left) in enumerate(seen[:-1]):
        assert signal == 9
        output = tmp_path / str(n) / "bundle"
        if left == ["bundle"]:  # killed after the rename, when nothing but the sync of the parent was left
            assert n == len(seen) - 2
            assert contents(output) == whole
            continue
        assert left[0].startswith(".bundle."), left
        assert left[1:] in ([], [f"{left[0]}.work"])
        if n % 5 == 0:
            build_bundle(MODEL, output)
            assert os.listdir(output.parent) == ["bundle"]
            assert contents(output) == whole


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("after", [0, 7])
def test_a_build_that_fails_in_the_middle_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], after: int
):
    make, made = Maker.make, []

    def failing(*arguments):
        made.append(arguments)
        if len(made) > after:
            raise error
        return make(*arguments)

    monkeypatch.setattr(Maker, "make", failing)
    with pytest.raises(error):
        build_bundle(MODEL, tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_a_bundle_that_breaks_a_rule_is_never_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build_module, "dump_compact", lambda value: b'{"kind":"decode"}\n')
    with pytest.raises(Exception, match="the bundle is damaged"):
        build_bundle(MODEL, tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_a_living_build_of_the_same_output_is_not_swept(tmp_path: Path):
    output = tmp_path / "bundle"
    slow_build = writing(output)
    slow = slow_build.__enter__()
    slow.add("first", b"1")
    (tmp_path / ".bundle.0000.partial").mkdir()  # what a dead build left
    build_bundle(MODEL, output)
    before = contents(output)
    assert (slow.folder / "first").read_bytes() == b"1"
    assert sorted(os.listdir(tmp_path)) == sorted([slow.folder.name, "bundle"])
    with pytest.raises(UsageError, match="exists already"):
        slow_build.__exit__(None, None, None)
    assert contents(output) == before
    assert os.listdir(tmp_path) == ["bundle"]
    open_bundle(output)


def test_leftovers_of_other_outputs_are_not_touched(tmp_path: Path):
    others = {".other.0000.partial", ".[b]undle.partial", "[b]undle.0000.partial", ".bundle.0000.partial"}
    for name in (*others, ".[b]undle.0000.partial"):
        (tmp_path / name).mkdir()
    build_bundle(MODEL, tmp_path / "[b]undle")
    assert set(os.listdir(tmp_path)) == others | {"[b]undle"}


def existing(path: Path) -> Iterator[None]:
    path.mkdir()
    yield
    (path / "file").write_text("mine", encoding="utf-8")
    yield
    shutil.rmtree(path)
    path.write_text("mine", encoding="utf-8")
    yield
    path.unlink()
    path.symlink_to("nowhere")
    yield


def test_whatever_is_at_the_output_is_refused_and_kept(tmp_path: Path):
    output = tmp_path / "bundle"
    for _ in existing(output):
        before = (output.is_symlink(), output.is_dir(), contents(output), output.is_file() and output.read_bytes())
        with pytest.raises(UsageError, match="exists already"):
            build_module.build(ModelText(MODEL), output, SMALL, Progress("plain"))
        assert before == (
            output.is_symlink(),
            output.is_dir(),
            contents(output),
            output.is_file() and output.read_bytes(),
        )
        assert os.listdir(tmp_path) == ["bundle"]


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o002])
def test_permissions_are_those_of_the_umask(tmp_path: Path, umask: int):
    before = os.umask(umask)
    try:
        with writing(tmp_path / "bundle") as writer:
            writer.add("model/config.json", b"{}")
            writer.add("file", b"")
    finally:
        os.umask(before)
    for path in [tmp_path / "bundle", *(tmp_path / "bundle").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~umask, path


def test_shards_keep_their_limit_and_the_library_reads_the_same_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_bundle: Callable[[str], Path]
):
    limit = 100_000
    monkeypatch.setattr(shards_module, "SHARD_BYTES", limit)
    bundle = build_bundle(MODEL, tmp_path / "bundle")
    opened = open_bundle(bundle)
    shards = sorted((bundle / "weights").iterdir())
    assert [shard.name for shard in shards] == [f"{index:05}.safetensors" for index in range(len(shards))]
    assert len(shards) > 3
    expected = stored_weights(tiny_bundle("tiny-qwen3"))
    found = set[str]()
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        real = {name: tensor for name, tensor in tensors.items() if not name.startswith("pad.")}
        assert len(real) == 1 or sum(tensor.nbytes for tensor in tensors.values()) <= limit
        for name, tensor in real.items():
            assert tensor.dtype == expected[name].dtype
            assert tensor.equal(expected[name])
            assert opened.manifest["tensors"][name]["file"] == f"weights/{shard.name}"
        found |= set(real)
    assert found == {name for name in expected if not name.startswith("pad.")} == set(opened.manifest["tensors"])
    assert opened.manifest["memory"]["weights_bytes"] == sum(shard.stat().st_size for shard in shards)


def test_the_same_bundle_is_told_apart_by_a_byte(tmp_path: Path):
    """bundle_id is the sha256 of the manifest, and the manifest holds the sha256 of every other file."""
    (shutil.copytree(MODEL, tmp_path / "model") / "LICENSE").write_text("mine\n", encoding="utf-8")
    first = open_bundle(build_bundle(tmp_path / "model", tmp_path / "a"))
    (tmp_path / "model" / "LICENSE").write_text("mine.\n", encoding="utf-8")
    second = open_bundle(build_bundle(tmp_path / "model", tmp_path / "b"))
    assert first.bundle_id != second.bundle_id
