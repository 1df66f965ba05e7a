"""Kits hold the kernels that builds make, the cheapest tiles by the model, and are whole or refused."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bundles import ASSETS
from checkpoints import random_checkpoint
from packager.commands.headers import write_headers
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.cli import main
from qpack_packager.cuda.lowering.lower import lower_target, shared_of
from qpack_packager.cuda.lowering.tiles import Tile, Tuning, candidates, choose, cost
from qpack_packager.cuda.targets import Target
from qpack_packager.cuda.tuning_kit import CHEAPEST, lower_candidates, make_kit, measured_tiles
from qpack_packager.devices import typical
from qpack_packager.prepare import Prepared, prepare
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from qpack_schemas.errors import InputError, IntegrityError, UsageError, VersionError
from qpack_schemas.strict_json import load_strict
from qpack_schemas.tuning_kit import KIT, Candidate, open_kit
from tuning_kits import changed, stand_in_kernels, stand_in_kit

L4 = Target(89)
OPTIONS = Options(batches=(1, 3), contexts=(64,), targets=("cuda:sm_89",))
KERNELS = "kernels/sm_89"


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in_kit(ASSETS / "tiny-qwen3", tmp_path_factory.mktemp("kits") / "kit", OPTIONS)


def decode_launches(prepared: Prepared, tuning: Tuning) -> dict[str, tuple[str, list[int | str]]]:
    """What a build launches for the first weight of each padded shape: kernel and grid."""
    programs, shared = prepared.lowered.programs, shared_of(prepared.lowered)
    table, code = lower_target(programs, shared, L4, tuning).tables["decode"], programs["decode"].code
    found: dict[str, tuple[str, list[int | str]]] = {}
    for launch in table.launches:
        instruction = code[launch.code[0]]
        if instruction.op == "linear_int4":
            groups, width = shared[instruction.inputs["scale"]].extent(1)
            found.setdefault(f"{128 * groups}x{width}", (launch.kernel, list(launch.grid)))
    return found


@pytest.mark.parametrize("model", ["published qwen3", "qwen2 of odd widths"])
def test_a_build_with_a_tile_makes_the_kernel_that_the_kit_has_for_it(model: str, tmp_path: Path):
    """So what was measured is what will run. The odd one has biases, and 192 columns, which are no multiple of 128."""
    if model == "published qwen3":
        folder = write_headers(tmp_path / "model", "qwen3", num_hidden_layers=1)
    else:
        folder = random_checkpoint(tmp_path / "model", "qwen2", hidden_size=192, num_attention_heads=6)
    prepared = prepare(ModelText(folder), OPTIONS)
    program = prepared.lowered.programs["decode"]
    weights, specs = lower_candidates(program, shared_of(prepared.lowered), L4, Tuning())
    for rank in range(max(len(weight["candidates"]) for weight in weights.values())):
        chosen: dict[str, Candidate] = {
            shape: weight["candidates"][rank] for shape, weight in weights.items() if rank < len(weight["candidates"])
        }
        tuning = Tuning({"sm_89": {shape: Tile(one["columns"], one["planes"]) for shape, one in chosen.items()}})
        built = decode_launches(prepared, tuning)
        assert {shape: built[shape] for shape in chosen} == {
            shape: (one["gemm"], one["gemm_grid"]) for shape, one in chosen.items()
        }
    assert set(weights) == set(built)
    assert {
        one[name] for weight in weights.values() for one in weight["candidates"] for name in ("gemm", "reader")
    } == (set(specs))


def test_the_tiles_are_the_cheapest_and_the_models_choice_stands_first():
    device = typical("sm_89")
    for k, n in ((1024, 6144), (3072, 1024), (128, 192)):
        tiles = list(measured_tiles(L4, Tuning(), k, n))
        assert tiles[0] == choose(device, Tuning(), k, n)
        assert len(tiles) == min(CHEAPEST, len(candidates(k, n)))
        others = set(candidates(k, n)) - set(tiles)
        assert max(cost(device, k, n, tile) for tile in tiles) <= min(
            (cost(device, k, n, tile) for tile in others), default=float("inf")
        )


def test_a_tile_of_the_tuning_file_is_measured_again_however_dear():
    device = typical("sm_89")
    dearest = max(candidates(1024, 6144), key=lambda tile: cost(device, 1024, 6144, tile))
    tiles = list(measured_tiles(L4, Tuning({"sm_89": {"1024x6144": dearest}}), 1024, 6144))
    assert len(tiles) == CHEAPEST + 1
    assert tiles[-1] == dearest


def test_a_kit_has_a_reader_of_as_many_planes_over_all_that_the_linear_writes(kit: Path):
    target = open_kit(kit).document["targets"]["cuda:sm_89"]
    for weight in target["weights"].values():
        for one in weight["candidates"]:
            gemm, reader = (target["kernels"][one[name]]["constants"] for name in ("gemm", "reader"))
            assert (gemm["K"], gemm["N"], reader["I"]) == (weight["k"], weight["n"], weight["n"] // 2)
            assert gemm["PLANES"] == reader["PLANES"] == one["planes"]
            assert gemm["TILE"] == one["columns"]


def test_a_kit_holds_kernels_and_nothing_else_and_is_the_same_each_time(kit: Path, tmp_path: Path):
    again = stand_in_kit(ASSETS / "tiny-qwen3", tmp_path / "kit", OPTIONS)
    files = {path.relative_to(kit).as_posix(): path.read_bytes() for path in kit.rglob("*") if path.is_file()}
    assert files == {
        path.relative_to(again).as_posix(): path.read_bytes() for path in again.rglob("*") if path.is_file()
    }
    document = open_kit(kit).document
    names = document["targets"]["cuda:sm_89"]["kernels"]
    assert set(files) == {KIT, *(f"{KERNELS}/{name}.cubin" for name in names)}
    assert document["rows"] == [1, 3]
    assert list(document["targets"]) == ["cuda:sm_89"]  # no PTX for newer GPUs: they would be measured with other code


def test_a_kit_is_for_gpus_and_never_written_over(kit: Path, tmp_path: Path):
    text = ModelText(ASSETS / "tiny-qwen3")
    with pytest.raises(UsageError, match="--target names none"):
        make_kit(text, tmp_path / "kit", Options(targets=("cpu",)), Progress("plain"))
    with pytest.raises(UsageError, match="exists already"):
        make_kit(text, kit, OPTIONS, Progress("plain"))
    assert list(tmp_path.iterdir()) == []


def test_a_kit_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise InputError("no")

    monkeypatch.setattr("qpack_packager.cuda.package.compile_all", refuse)
    with pytest.raises(InputError):
        make_kit(ModelText(ASSETS / "tiny-qwen3"), tmp_path / "kit", OPTIONS, Progress("plain"))
    assert list(tmp_path.iterdir()) == []


def test_the_command_takes_the_flags_of_a_build_and_tells_what_is_next(tmp_path: Path):
    tuning = tmp_path / "tuning.json"
    tuning.write_text(json.dumps({"tuning_version": 1, "tiles": {"sm_80": {}}}), encoding="utf-8")
    arguments = ["tuning-kit", str(ASSETS / "tiny-qwen3"), "--target", "cuda:sm_89", "--target", "cuda:sm_80"]
    arguments += ["--batch", "2", "--context", "64", "--dtype", "float16", "--tuning", str(tuning)]
    with stand_in_kernels():
        first = CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "a"), "--format", "json"])
        second = CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "b")])
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    facts, document = json.loads(first.stdout), open_kit(tmp_path / "a").document
    assert facts["checksum"] == document["checksum"]
    assert [one["target"] for one in facts["targets"]] == ["cuda:sm_80", "cuda:sm_89"]
    assert (document["rows"], document["activation"]) == ([1, 2], "float16")
    assert f"qpack-runtime tune {tmp_path / 'b'}" in second.stdout


def edit(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """Puts `value` at `path` below the target; "first" stands for the first key."""

    def change(document: dict[str, Any]) -> None:
        place = document["targets"]["cuda:sm_89"]
        for step in path[:-1]:
            place = place[next(iter(place)) if step == "first" else step]
        place[path[-1]] = value

    return change


CANDIDATE = ("weights", "first", "candidates", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit("architecture", value="sm_86"), "the target's name says otherwise"),
        (edit(*CANDIDATE, "gemm", value="linear_int4_decode_00000000"), "is not among the target's kernels"),
        (edit(*CANDIDATE, "columns", value=256), "are no divisor|the tile makes it"),
        (edit(*CANDIDATE, "planes", value=2), "'PLANES': 1"),
        (edit(*CANDIDATE, "gemm_grid", value=[1, 1, 9]), "the tile makes it"),
        (edit(*CANDIDATE, "reader_grid", value=[2000, "R", 1]), "the grid of the reader"),
        (edit("weights", "first", "n", value=1 << 20), "are padded to"),
        (edit("weights", "first", "k", value=1), "it must be for"),
        (edit("kernels", "first", "function", value="silu.other"), "must be a"),
        (edit("kernels", "first", "params", value=[]), "it must take"),
        (edit("kernels", "first", "file", value="kit.json"), "the kernel's name says"),
        (edit("kernels", "first", "block", value=1024), "is compiled for a block"),
        (edit("kernels", "first", "sha256", value="0" * 64), "has sha256"),
        (edit("max_shared_bytes", value=-1), "minimum"),
        (edit("weights", value={}), "non-empty|properties"),
    ],
)
def test_a_kit_that_contradicts_itself_is_damaged(kit: Path, change: Any, message: str, tmp_path: Path):
    with pytest.raises(IntegrityError, match=message) as raised:
        open_kit(changed(kit, tmp_path / "kit", change))
    assert raised.value.exit_code == 5


def test_every_bit_of_a_kit_is_guarded(kit: Path, tmp_path: Path):
    whole = changed(kit, tmp_path / "kit", lambda document: None)
    open_kit(whole)
    for file in (KIT, f"{KERNELS}/{min(path.name for path in (kit / KERNELS).iterdir())}"):
        data = (whole / file).read_bytes()
        for place in range(0, len(data), max(1, len(data) // 16)):
            (whole / file).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises((IntegrityError, VersionError)):
                open_kit(whole)
        (whole / file).unlink()
        with pytest.raises(IntegrityError):
            open_kit(whole)
        (whole / file).write_bytes(data)


def test_a_kit_of_another_version_needs_the_same_qpack(kit: Path, tmp_path: Path):
    with pytest.raises(VersionError, match="is 2, this qpack reads 1"):
        open_kit(changed(kit, tmp_path / "kit", lambda document: document.update(kit_version=2, more=1)))
    with pytest.raises(InputError, match="no directory"):
        open_kit(tmp_path / "none")


@pytest.mark.nightly
def test_a_kit_of_compiled_kernels_is_whole(tmp_path: Path):
    make_kit(
        ModelText(ASSETS / "tiny-qwen3"), tmp_path / "kit", OPTIONS, Progress("plain"), kernel_cache=tmp_path / "c"
    )
    target = open_kit(tmp_path / "kit").document["targets"]["cuda:sm_89"]
    for kernel in target["kernels"].values():
        assert hashlib.sha256((tmp_path / "kit" / kernel["file"]).read_bytes()).hexdigest() == kernel["sha256"]
        assert kernel["spills"] == 0
    assert load_strict(tmp_path / "kit" / KIT)["kit_version"] == 1
