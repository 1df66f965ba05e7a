"""A build that dies at any moment goes on to the same bundle, or starts anew: never to another one."""

import json
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from bundles import ASSETS, SMALL
from qpack_packager import build as building
from qpack_packager.calibration.calibrated import Calibrated
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.journal import ACTIVATIONS, Journal, work_of
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from qpack_packager.weights.make import Maker
from qpack_packager.weights.shards import WeightShards
from qpack_schemas.errors import FitError
from slow_hashing import hash_after, hash_when_shown

MODEL = ASSETS / "tiny-qwen3_5"
KILLS = 20


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def build(*arguments: Any, **choices: Any) -> str:
    return building.build(*arguments, **choices).bundle_id


def resumed(output: Path, model: Path = MODEL, options: Options = SMALL) -> str:
    return build(ModelText(model), output, options, Progress("plain"), resume=True)


def counted(monkeypatch: pytest.MonkeyPatch, at: Callable[[], None]) -> None:
    """Calls `at` before everything that a build does to the disk, half of a write included."""
    put, enter, sync, rename = WeightShards._put, Journal.enter, os.fsync, Path.rename

    def half(shards, file, data):
        at()
        data = memoryview(data).cast("B")
        put(shards, file, data[: len(data) // 2])
        file.flush()
        at()
        put(shards, file, data[len(data) // 2 :])

    def before(function):
        def called(*arguments):
            at()
            return function(*arguments)

        return called

    monkeypatch.setattr(WeightShards, "_put", half)
    monkeypatch.setattr(Journal, "enter", before(enter))
    monkeypatch.setattr(os, "fsync", before(sync))
    monkeypatch.setattr(Path, "rename", before(rename))


def killed(output: Path, moment: int, monkeypatch: pytest.MonkeyPatch, *, resume: bool = False) -> bool:
    """Builds in a process of its own, which ends with SIGKILL at the `moment`th event. Whether it did."""
    if not (child := os.fork()):
        left = moment

        def die() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        counted(monkeypatch, die)
        try:
            build(ModelText(MODEL), output, SMALL, Progress("plain"), resume=resume)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def events(tmp_path: Path) -> int:
    """Of a whole build."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        counted(patch, lambda: seen.append(None))
        build(ModelText(MODEL), tmp_path / "counted", SMALL, Progress("plain"))
    shutil.rmtree(tmp_path / "counted")
    return len(seen)


def test_a_build_killed_at_random_moments_resumes_to_the_same_bundle_id_or_starts_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = build(ModelText(MODEL), tmp_path / "whole", SMALL, Progress("plain"))
    total, made, took_over = events(tmp_path), Maker.make, 0
    every = json.loads((tmp_path / "whole" / "manifest.json").read_text(encoding="utf-8"))["tensors"]
    count = len({name for name in every if not name.endswith(".scale")})  # a module each, but for scales
    assert total > 4 * KILLS
    for moment in random.Random(6).sample(range(total), KILLS):
        output = tmp_path / f"{moment}" / "bundle"
        output.parent.mkdir()
        with monkeypatch.context() as patch:
            assert killed(output, moment, patch)
        if output.exists():  # after the rename
            assert contents(output) == contents(tmp_path / "whole")
            continue
        modules: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(Maker, "make", lambda maker, one, seen=modules: (seen.append(one.name), made(maker, one))[1])
            assert resumed(output) == whole
        assert os.listdir(output.parent) == ["bundle"]
        assert contents(output) == contents(tmp_path / "whole")
        took_over += len(modules) < count
    assert took_over > KILLS / 4  # most of the events are those of weights


def test_a_build_that_dies_again_and_again_gets_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = build(ModelText(MODEL), tmp_path / "whole", SMALL, Progress("plain"))
    output, total, draw = tmp_path / "a" / "bundle", events(tmp_path), random.Random(1)
    output.parent.mkdir()
    deaths = 0
    while not output.exists():
        with monkeypatch.context() as patch:
            deaths += killed(output, draw.randrange(total // 8, total // 3), patch, resume=True)
        assert deaths < 100
    assert deaths > 1
    assert contents(output) == contents(tmp_path / "whole")
    assert build(ModelText(MODEL), tmp_path / "again", SMALL, Progress("plain")) == whole


def half_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The output of a build that was killed when about half of it was done, and the directory that it left."""
    output = folder / "bundle"
    output.parent.mkdir(parents=True)
    with monkeypatch.context() as patch:
        assert killed(output, events(folder) * 2 // 3, patch)
    (left,) = output.parent.glob(".bundle.*.partial")
    assert (work_of(left) / "journal.jsonl").is_file()
    return output, left


@pytest.mark.parametrize("place", [0.2, 0.5, 0.9])
def test_what_was_damaged_in_between_is_made_again(place: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = build(ModelText(MODEL), tmp_path / "whole", SMALL, Progress("plain"))
    output, left = half_done(tmp_path / "a", monkeypatch)
    files = sorted((left / "weights").iterdir())
    weights = files[int(place * len(files))]
    data = bytearray(weights.read_bytes())
    data[int(place * len(data))] ^= 1
    weights.write_bytes(data)
    assert resumed(output) == whole


@pytest.mark.parametrize("cut", [1, 40, 4000])
def test_a_journal_that_ends_within_a_line_is_read_up_to_there(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = build(ModelText(MODEL), tmp_path / "whole", SMALL, Progress("plain"))
    output, left = half_done(tmp_path / "a", monkeypatch)
    journal = work_of(left) / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-cut])
    assert resumed(output) == whole


def test_another_build_starts_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Other options, or one other byte in the checkpoint, its size and times as they were."""
    output, left = half_done(tmp_path / "a", monkeypatch)
    options = Options(batches=(1, 4), contexts=(64, 128), prefills=(1, 16, 64), slots=4, lm_head="int4")
    wanted = build(ModelText(MODEL), tmp_path / "int4", options, Progress("plain"))
    assert resumed(output, options=options) == wanted
    assert not left.exists()

    output, left = half_done(tmp_path / "b", monkeypatch)
    model = shutil.copytree(MODEL, tmp_path / "model")
    weights = model / "model.safetensors"
    weights.chmod(0o644)
    data, times = bytearray(weights.read_bytes()), weights.stat()
    data[-1000] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    wanted = build(ModelText(model), tmp_path / "changed", SMALL, Progress("plain"))
    assert resumed(output, model) == wanted


def test_without_the_flag_a_build_starts_clean_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    output, left = half_done(tmp_path / "a", monkeypatch)
    made, modules = Maker.make, list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(Maker, "make", lambda maker, module: (modules.append(module.name), made(maker, module))[1])
        build(ModelText(MODEL), output, SMALL, Progress("plain"))
    assert not left.exists()
    assert "rope" in modules


def test_an_interrupted_build_keeps_what_it_has_only_with_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Maker.make

    def interrupted(maker, module):
        if module.name == "layers.2.mlp.down":
            raise KeyboardInterrupt
        return made(maker, module)

    for resume in (True, False):
        output = tmp_path / str(resume) / "bundle"
        with monkeypatch.context() as patch:
            patch.setattr(Maker, "make", interrupted)
            with pytest.raises(KeyboardInterrupt):
                build(ModelText(MODEL), output, SMALL, Progress("plain"), resume=resume)
        assert len(os.listdir(output.parent)) == (2 if resume else 0)  # the unfinished bundle, and its work


def test_what_an_interrupted_build_made_beside_weights_is_in_no_other_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The journal is of the weights, and builds that differ in all else take them over."""
    whole = build(ModelText(MODEL), tmp_path / "whole", SMALL, Progress("plain"))
    output, left = half_done(tmp_path / "a", monkeypatch)
    for name in ("quality.json", "kernels/other.cubin"):
        (left / name).parent.mkdir(exist_ok=True)
        (left / name).write_bytes(b"{}")
    assert resumed(output) == whole
    assert contents(output) == contents(tmp_path / "whole")


def test_a_build_that_goes_on_shows_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What was left is known by the digests, so they come first."""
    output, _ = half_done(tmp_path / "a", monkeypatch)
    phases = list[list[str]]()
    for place in (output, tmp_path / "b" / "bundle"):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            hash_when_shown(patch)
            build(ModelText(MODEL), place, SMALL, Progress("json"), resume=True)
        events = map(json.loads, capsys.readouterr().err.splitlines())
        phases.append([event["phase"] for event in events if event["event"] == "phase"])
    assert phases == [["source", "weights"], ["weights", "source"]]


def test_a_build_that_dies_before_the_checkpoint_is_hashed_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nobody could tell whether what it has made is of the same checkpoint."""
    whole = build(ModelText(MODEL), tmp_path / "whole", SMALL, Progress("plain"))
    output, total = tmp_path / "a" / "bundle", events(tmp_path)
    output.parent.mkdir()
    with monkeypatch.context() as patch:
        hash_after(signal.pause, patch)
        assert killed(output, total // 2, patch, resume=True)
    (left,) = output.parent.glob(".bundle.*.partial")
    assert any((left / "weights").iterdir())
    made, modules = Maker.make, list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(Maker, "make", lambda maker, module: (modules.append(module.name), made(maker, module))[1])
        assert resumed(output) == whole
    assert "rope" in modules
    assert not left.exists()


def test_what_was_made_before_the_checkpoint_was_hashed_is_kept_once_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = build(ModelText(MODEL), tmp_path / "whole", SMALL, Progress("plain"))
    output, made, enter = tmp_path / "a" / "bundle", Maker.make, Journal.enter
    entered, hashed, modules = list[str](), Event(), list[str]()

    def hashed_late(journal, module, *line):
        if len(entered) == 8:
            hashed.set()
            journal._mark.result()
        if len(entered) == 10:
            raise KeyboardInterrupt
        enter(journal, module, *line)
        entered.append(module)
        assert journal._path.exists() == (len(entered) > 8)

    with monkeypatch.context() as patch:
        hash_after(hashed.wait, patch)
        patch.setattr(Journal, "enter", hashed_late)
        with pytest.raises(KeyboardInterrupt):
            resumed(output)
    with monkeypatch.context() as patch:
        patch.setattr(Maker, "make", lambda maker, module: (modules.append(module.name), made(maker, module))[1])
        assert resumed(output) == whole
    assert len(entered) == 10
    assert not set(entered) & set(modules)


def test_an_interrupted_build_that_is_not_hashed_yet_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hashed = Event()

    def interrupted(maker, module):
        hashed.set()
        raise KeyboardInterrupt

    hash_after(hashed.wait, monkeypatch)
    monkeypatch.setattr(Maker, "make", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resumed(tmp_path / "a" / "bundle")
    assert os.listdir(tmp_path / "a") == []


def test_a_disk_that_the_activations_of_a_calibration_would_fill_is_told_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What goes into a layer and what comes out of it, in float32: 8 bytes for each token and hidden number."""
    text = (MODEL / "eval.txt").read_text(encoding="utf-8")
    (tmp_path / "text").write_text(text[:1500], encoding="utf-8")
    options = replace(SMALL, method="gptq", calibration=tmp_path / "text")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=700_000))
    with pytest.raises(FitError, match=r"the activations of the calibration [\d,]+, the disk has 700,000 left"):
        build(ModelText(MODEL), tmp_path / "a" / "bundle", options, Progress("plain"))
    assert os.listdir(tmp_path / "a") == []


def test_activations_that_an_interrupted_calibration_left_need_no_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "text").write_text((MODEL / "eval.txt").read_text(encoding="utf-8")[:1500], encoding="utf-8")
    options = replace(SMALL, method="gptq", calibration=tmp_path / "text")
    output, calibrate = tmp_path / "a" / "bundle", Calibrated.quantize

    def interrupted(calibrated, module, weight):
        if module.name == "layers.2.mlp.down":
            raise KeyboardInterrupt
        return calibrate(calibrated, module, weight)

    def told(free: int) -> int:
        """How many bytes of activations a disk with so many bytes free is told to lack."""
        usage = shutil.disk_usage(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
            with pytest.raises(FitError) as caught:
                resumed(output, options=options)
        found = re.search(r"the activations of the calibration ([\d,]+)", caught.value.message)
        assert found, caught.value.message
        return int(found[1].replace(",", ""))

    before = told(700_000)
    with monkeypatch.context() as patch:
        patch.setattr(Calibrated, "quantize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            resumed(output, options=options)
    (left,) = output.parent.glob(".bundle.*.partial")
    there = sum(path.stat().st_size for path in (work_of(left) / ACTIVATIONS).iterdir())
    assert there > 0
    assert told(300_000) == before - there


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
    with pytest.raises(FitError, match=r"need [\d,]+ bytes, the disk has 100,000 left"):
        build(ModelText(MODEL), tmp_path / "a" / "bundle", SMALL, Progress("plain"))
    assert os.listdir(tmp_path / "a") == []
