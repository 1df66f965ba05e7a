"""`qpack-runtime tune` on the stub: what it launches over which memory, what it chooses, merges, writes and refuses.

The stub's times are those of this machine: kernels that sleep stand for slow tiles."""

import ctypes
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bundles import ASSETS
from cuda_client import Stub
from cuda_hook import Interpreter
from qpack_packager.cuda.lowering.tiles import Tile, Tuning
from qpack_packager.serving import Options
from qpack_runtime.cli import main
from qpack_runtime.cuda import pair_times, tune
from qpack_runtime.cuda.driver import Driver
from qpack_runtime.cuda.host import Host, read_host
from qpack_runtime.cuda.kernels import load_kernels
from qpack_runtime.cuda.pair_times import PairTimes, Walk, plan_walk
from qpack_runtime.cuda.tune import Choice, Measured, choice_of, merged, read_tuning
from qpack_runtime.reference.marlin import dequantize
from qpack_schemas.errors import InputError, UnsupportedError, UsageError
from qpack_schemas.tuning_kit import Weight, open_kit
from tuning_kits import changed, stand_in_kit

L4 = "cuda:sm_89"
COPIES, PAIRS, REPLAYS = 3, 6, 3
HOST = Host("NVIDIA L4", 89, 12080, 1 << 34, 1 << 33, False, 101_376)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = Options(batches=(1, 9), contexts=(64,), dtype="float32", targets=(L4, "cuda:sm_80"))
    return stand_in_kit(ASSETS / "tiny-qwen3", tmp_path_factory.mktemp("kits") / "kit", options)


@pytest.fixture
def stub(stub_library: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """The stub, with little to measure on it."""
    monkeypatch.setattr(tune, "Driver", partial(Driver, str(stub_library)))
    for name, value in {"MOST_COPIES": COPIES, "LEAST_PAIRS": PAIRS - 1, "WARM_SECONDS": 0, "REPLAYS": REPLAYS}.items():
        monkeypatch.setattr(pair_times, name, value)
    return Stub(stub_library)


def run(kit: Path, output: Path, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["tune", str(kit), "-o", str(output), *arguments])
    return result.exit_code, result.stdout, result.stderr


def weights_of(kit: Path, target: str = L4) -> dict[str, Weight]:
    return open_kit(kit).document["targets"][target]["weights"]


def test_a_build_takes_the_tiles_that_were_written(kit: Path, stub: Stub, tmp_path: Path):
    code, printed, told = run(kit, tmp_path / "tuning.json", "--format", "json")
    assert code == 0, told
    facts, tuning = json.loads(printed), Tuning.read(tmp_path / "tuning.json")
    assert {sm: set(shapes) for sm, shapes in tuning.tiles.items()} == {"sm_89": set(weights_of(kit))}
    for shape, tile in tuning.tiles["sm_89"].items():
        one, weight = facts["weights"][shape], weights_of(kit)[shape]
        assert (tile.columns, tile.planes) == (one["chosen"]["columns"], one["chosen"]["planes"])
        assert [(each["columns"], each["planes"]) for each in one["measured"]] == [
            (each["columns"], each["planes"]) for each in weight["candidates"]
        ]
        assert one["model"] == one["measured"][0]
        assert set(one["chosen"]["microseconds"]) == {"1", "9"}
        assert all(each > 0 for measured in one["measured"] for each in measured["microseconds"].values())
        assert shape in told
    written = json.loads((tmp_path / "tuning.json").read_text(encoding="utf-8"))
    assert (written["device"], written["driver"]) == ("Stub GPU 8.9", 13000)
    assert [path.name for path in tmp_path.iterdir()] == ["tuning.json"]


def test_the_table_has_a_line_for_every_weight(kit: Path, stub: Stub, tmp_path: Path):
    code, printed, _ = run(kit, tmp_path / "tuning.json")
    assert code == 0
    for shape in weights_of(kit):
        (line,) = (line for line in printed.splitlines() if line.split()[:1] == [shape])
        assert line.count(" x ") == 2  # the chosen tile and the model's
    assert "mean of steps of 1, 9 rows" in printed


def test_the_tile_whose_kernels_take_least_is_chosen(kit: Path, stub: Stub, tmp_path: Path):
    """The quick one is the last of the model's ranking; the others sleep, twice as long with nine rows as with one."""
    quick = {weight["candidates"][-1]["gemm"] for weight in weights_of(kit).values()}

    def slow(name: str, image: int, dims: tuple[int, ...], arguments: bytes) -> None:
        if name.startswith("linear") and name not in quick:
            time.sleep(0.002 * dims[2])

    stub.set_hook(slow)
    code, printed, _ = run(kit, tmp_path / "tuning.json", "--format", "json")
    assert code == 0
    tuning, facts = Tuning.read(tmp_path / "tuning.json"), json.loads(printed)["weights"]
    for shape, weight in weights_of(kit).items():
        *others, last = weight["candidates"]
        assert tuning.tiles["sm_89"][shape] == Tile(last["columns"], last["planes"])
        for measured in facts[shape]["measured"][: len(others)]:
            assert measured["microseconds"]["1"] > 2_000
            assert measured["microseconds"]["9"] > 4_000


def test_a_time_is_that_of_one_pair_in_microseconds(
    kit: Path, stub: Stub, stub_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Steady(Driver):
        """Every graph takes 1.5 ms."""

        def call(self, name: str, *arguments: Any) -> Any:
            result = super().call(name, *arguments)
            return 1.5 if name == "cuEventElapsedTime" else result

    monkeypatch.setattr(tune, "Driver", partial(Steady, str(stub_library)))
    code, printed, _ = run(kit, tmp_path / "tuning.json", "--format", "json")
    assert code == 0
    for one in json.loads(printed)["weights"].values():
        assert one["chosen"]["microseconds"] == {"1": 250.0, "9": 250.0}  # of six pairs
    written = json.loads((tmp_path / "tuning.json").read_text(encoding="utf-8"))
    assert {tile["microseconds"] for tile in written["tiles"]["sm_89"].values()} == {250.0}


def test_a_graph_walks_over_all_copies_and_reads_each_time_what_was_written(kit: Path, stub: Stub, tmp_path: Path):
    """Arguments as the kernels get them: x, q, scale, y, R of the linear; x, y, R of its reader."""
    seen: list[tuple[str, tuple[int, ...], list[int]]] = []

    def note(name: str, image: int, dims: tuple[int, ...], arguments: bytes) -> None:
        count = 4 if name.startswith("linear") else 2
        pointers = [int.from_bytes(arguments[8 * at : 8 * at + 8], "little") for at in range(count)]
        rows = int.from_bytes(arguments[8 * count : 8 * count + 4], "little")
        seen.append((name, dims, [*pointers, rows]))

    stub.set_hook(note)
    assert run(kit, tmp_path / "tuning.json")[0] == 0
    assert stub.intact()
    expected = [
        (name, rows, index % COPIES)
        for weight in weights_of(kit).values()
        for _ in range(REPLAYS)
        for candidate in weight["candidates"]
        for rows in (1, 9)
        for index in range(PAIRS)
        for name in (candidate["gemm"], candidate["reader"])
    ]
    assert [(name, arguments[-1]) for name, _, arguments in seen] == [(name, rows) for name, rows, _ in expected]
    for at in range(0, len(seen), 2 * PAIRS):
        linears, readers = seen[at : at + 2 * PAIRS : 2], seen[at + 1 : at + 2 * PAIRS : 2]
        assert {reader[2][0] for reader in readers} == {linear[2][3] for linear in linears}
        for operand in (1, 2):  # codes, scales
            places = [linear[2][operand] for linear in linears]
            assert places[:COPIES] * (PAIRS // COPIES) == places
            assert len(set(places)) == COPIES
        rows = linears[0][2][-1]
        assert all(
            linear[1][2] == -(-rows // 8) and reader[1][1] == rows
            for linear, reader in zip(linears, readers, strict=True)
        )


def test_the_kernels_compute_what_a_model_would_from_this_memory(kit: Path, stub: Stub, stub_library: Path):
    """The last pair, against the reference's dequantization and NumPy: nothing is mistaken for something else."""
    target = open_kit(kit).document["targets"][L4]
    _, shape, index = max(
        (one["planes"], shape, index)
        for shape, weight in target["weights"].items()
        for index, one in enumerate(weight["candidates"])
    )
    weight = target["weights"][shape]
    candidate = weight["candidates"][index]
    assert candidate["planes"] > 1
    weight["candidates"] = [candidate]
    interpreter = Interpreter(kit, target)  # type: ignore[arg-type]
    driver = Driver(str(stub_library))
    host = read_host(driver)
    kernels = load_kernels(driver, kit, target["kernels"])
    stub.set_hook(interpreter)
    times = PairTimes(driver, host, kernels, {shape: weight}, [1, 9])
    times.measure(shape, weight)
    assert not stub.raised
    assert stub.intact()
    walk, base = times.walks[shape], times._base
    k, n = (int(size) for size in shape.split("x"))

    def array(name: str, dtype: Any, *dims: int, begin: int = 0) -> np.ndarray:
        raw = (ctypes.c_ubyte * (np.dtype(dtype).itemsize * int(np.prod(dims)))).from_address(base[name] + begin)
        return np.ctypeslib.as_array(raw).view(dtype).reshape(dims)

    codes = array("q", np.int32, k // 16, 2 * n, begin=(walk.copies - 1) * -(-walk.code_bytes // 256) * 256)
    assert len(np.unique(codes)) > codes.size * 0.9  # like a model's
    scales = array("scale", np.uint16, k // 128, n).astype(np.uint32) << 16  # bfloat16
    x = array("x", np.float32, 9, weight["k"])
    wanted = x.astype(np.float64) @ dequantize(codes, scales.view(np.float32))[: weight["k"], : weight["n"]]
    planes = array("y", np.float32, candidate["planes"], 9, weight["n"])
    np.testing.assert_allclose(planes.sum(0), wanted, rtol=2e-5, atol=1e-5)
    gate, up = np.split(wanted, 2, axis=1)
    read = array("read", np.float32, 9, weight["n"] // 2)
    np.testing.assert_allclose(read, gate / (1 + np.exp(-gate)) * up, rtol=2e-5, atol=1e-5)


@given(st.integers(1, 1 << 15), st.integers(2, 1 << 15), st.sampled_from([1, 512 << 10, 50 << 20, 126 << 20]))
def test_the_copies_of_a_weight_are_larger_than_any_cache(k: int, n: int, cache: int):
    """Int4 codes and bfloat16 scales of the padded [k, n]: k n / 2 + k / 128 n 2 bytes."""
    walk = plan_walk({"k": k, "n": n, "candidates": []}, 2, cache)
    lines, width = -(-k // 128) * 128, -(-n // 64) * 64
    assert walk.weight_bytes == lines * width // 2 + lines // 128 * width * 2
    if walk.copies < pair_times.MOST_COPIES:
        assert walk.copies * walk.weight_bytes >= max(64 << 20, 4 * cache)
    assert walk.copies >= 2
    assert walk.pairs >= 32
    assert walk.pairs % walk.copies == 0  # the next graph begins with the copy that was used longest ago


def test_the_fastest_on_average_is_chosen_and_one_row_counts_as_much_as_many():
    weight: Weight = {
        "k": 128, "n": 256,
        "candidates": [
            {"columns": columns, "planes": planes, "gemm": "", "gemm_grid": [], "reader": "", "reader_grid": []}
            for columns, planes in ((128, 1), (64, 2), (64, 1), (256, 1))
        ],
    }  # fmt: skip
    times = [{1: 5.0, 8: 9.0}, {1: 4.0, 8: 9.5}, {1: 6.5, 8: 6.5}, {1: 3.0, 8: 10.5}]
    choice = choice_of("128x256", weight, 17_408, times)
    assert choice.best == Measured(64, 1, {1: 6.5, 8: 6.5})
    assert choice.gigabytes_per_second == pytest.approx(17_408 / 6.5e-6 / 1e9)
    assert choice.measured[0] == Measured(128, 1, {1: 5.0, 8: 9.0})  # the model's
    even = choice_of("128x256", weight, 17_408, [{1: 5.0}] * 4)
    assert (even.best.columns, even.best.planes) == (256, 1)


def test_what_was_measured_elsewhere_stays(tmp_path: Path):
    before = {
        "tuning_version": 1,
        "device": "NVIDIA H200",
        "driver": 13000,
        "tiles": {
            "sm_90": {"128x256": {"columns": 64, "planes": 1}},
            "sm_89": {"128x256": {"columns": 64, "planes": 1}, "4096x1024": {"columns": 64, "planes": 8}},
        },
    }
    choice = Choice("128x256", 17_408, (Measured(128, 1, {1: 2.0, 8: 3.0005}),))
    assert merged(before, "sm_89", [choice], HOST) == {
        "tuning_version": 1,
        "device": "NVIDIA L4",
        "driver": 12080,
        "tiles": {
            "sm_90": {"128x256": {"columns": 64, "planes": 1}},
            "sm_89": {
                "128x256": {"columns": 128, "planes": 1, "microseconds": 2.5},
                "4096x1024": {"columns": 64, "planes": 8},
            },
        },
    }


def test_two_gpus_one_after_the_other_make_one_file(kit: Path, stub: Stub, tmp_path: Path):
    """8.6 runs the code of 8.0, whose tiles it chooses."""
    file = tmp_path / "tuning.json"
    for compute_capability in (89, 86):
        stub.set("CC", compute_capability)
        stub.call("stub_reset")
        assert run(kit, file)[0] == 0
    assert {sm: set(shapes) for sm, shapes in Tuning.read(file).tiles.items()} == {
        "sm_80": set(weights_of(kit, "cuda:sm_80")), "sm_89": set(weights_of(kit)),
    }  # fmt: skip


def test_a_gpu_without_a_target_ends_with_4(kit: Path, stub: Stub, tmp_path: Path):
    stub.set("CC", 120)
    code, printed, told = run(kit, tmp_path / "tuning.json", "--format", "json")
    assert code == json.loads(printed)["error"]["exit_code"] == 4
    assert "no target of the kit runs here: this GPU is sm_120" in told
    assert "--target cuda:sm_120" in told
    assert "bundle" not in told
    stub.set("CC", 89)
    stub.set("DRIVER", 11080)
    code, _, told = run(kit, tmp_path / "tuning.json")
    assert code == 4
    assert "update the driver" in told


def test_a_kernel_that_needs_more_shared_memory_than_the_gpu_has_ends_with_4(kit: Path):
    opened = open_kit(kit)
    opened.document["targets"][L4]["max_shared_bytes"] = 200_000
    with pytest.raises(UnsupportedError, match=r"200,000 bytes of shared memory in a block, NVIDIA L4 gives 101,376"):
        tune.choose_target(opened, HOST)


def test_a_damaged_kit_ends_with_5(kit: Path, stub: Stub, tmp_path: Path):
    copy = changed(kit, tmp_path / "kit", lambda document: None)
    cubin = min((copy / "kernels" / "sm_89").iterdir())
    cubin.write_bytes(cubin.read_bytes()[:-1] + b"?")
    code, _, told = run(copy, tmp_path / "tuning.json")
    assert code == 5
    assert cubin.name in told
    assert not (tmp_path / "tuning.json").exists()


def test_a_host_without_a_driver_ends_with_4(kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tune, "Driver", partial(Driver, "libcuda-that-is-not-there.so.1"))
    assert run(kit, tmp_path / "tuning.json")[0] == 4


def test_too_little_memory_ends_with_6_and_both_numbers(kit: Path, stub: Stub, tmp_path: Path):
    stub.set("MEM", 60_000)
    code, _, told = run(kit, tmp_path / "tuning.json")
    assert code == 6
    assert "60,000" in told


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"tuning_version": 2, "tiles": {}}', '{"tiles": []}'])
def test_another_file_is_not_written_over(text: str, kit: Path, stub: Stub, tmp_path: Path):
    """And that is known before anything is measured."""
    file = tmp_path / "tuning.json"
    file.write_text(text, encoding="utf-8")
    launched: list[str] = []
    stub.set_hook(lambda name, *_: launched.append(name))
    assert run(kit, file)[0] == 1
    assert file.read_text(encoding="utf-8") == text
    assert launched == []


def test_a_place_that_cannot_be_written_is_known_before_anything_is_measured(tmp_path: Path):
    with pytest.raises(InputError, match="is in no directory"):
        read_tuning(tmp_path / "none" / "tuning.json")


def test_a_tuning_file_is_not_written_into_a_bundle(kit: Path, tiny_bundle: Callable[[str], Path]):
    bundle = tiny_bundle("tiny-qwen3")
    with pytest.raises(UsageError, match="lies in the bundle"):
        tune.tune(kit, bundle / "tuning.json", lambda line: None)
    assert not (bundle / "tuning.json").exists()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, link = tmp_path / "tuning.json", tmp_path / "link.json"
    file.write_bytes(b"old")
    link.symlink_to(file)

    def full(handle: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="no space"):
            tune.replace(file, b"new")
    assert file.read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"tuning.json", "link.json"}
    tune.replace(link, b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"


def test_a_walk_of_few_copies_goes_round_several_times():
    assert Walk(1000, 24, 5).pairs == 35
    assert Walk(1000, 24, 100).pairs == 100
