"""scripts/gpu_check.py, as it runs on a GPU's host, on the stub libcuda with interpreted kernels."""

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import TINY_QWEN3, random_checkpoint, read_tensors
from cuda_bundles import build_cuda_bundle
from cuda_client import environment
from cuda_host import TARGET
from qpack_packager.serving import Options
from qpack_runtime.engine import Engine
from qpack_runtime.reference.executor import ReferenceExecutor
from qpack_schemas.bundle import open_bundle

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "scripts"
# Interpreting takes milliseconds a program: as few layers, buckets and rows as have everything.
OPTIONS = Options(batches=(1, 3), contexts=(32,), prefills=(1, 4), slots=3, targets=(TARGET,))
FEW = ("--steps", "2", "--decode-steps", "1", "--boots", "2", "--tokens", "2", "--prompt", "5")

BROKEN_SILU = {"BROKEN_KERNEL": "silu_mul", "BROKEN_ARGUMENT": "8"}  # its arguments are x, y and more

# Python runs this before the script, in every process. What interprets needs seconds to be imported, and boots run no
# kernels.
COMPUTING = """
import ctypes, os, sys
from pathlib import Path
if "BUNDLE_UNDER_CHECK" in os.environ and "--multiprocessing-fork" in sys.orig_argv:
    os.environ["TRITON_INTERPRET"] = "1"
    from cuda_client import Stub
    from cuda_host import interpreted
    stub, compute = Stub(Path("libcuda.so.1")), interpreted(Path(os.environ["BUNDLE_UNDER_CHECK"]))
    def hook(name, image, dims, arguments):
        compute(name, image, dims, arguments)
        if name.startswith(os.environ.get("BROKEN_KERNEL", "no kernel")):  # the first number of its output is wrong
            at = int(os.environ["BROKEN_ARGUMENT"])
            number = ctypes.c_float.from_address(int.from_bytes(arguments[at : at + 8], "little"))
            number.value = number.value * 1.001 + 1e-3
    stub.set_hook(hook)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """bundle("qwen3", "float32"): one layer of attention; "qwen3_5": one of each mixer."""
    built: dict[tuple[str, str], Path] = {}
    layers = {"qwen3": ["full_attention"], "qwen3_5": ["linear_attention", "full_attention"]}

    def get(family: str, dtype: str) -> Path:
        if (family, dtype) not in built:
            folder = tmp_path_factory.mktemp("bundles")
            sizes = {"num_hidden_layers": len(layers[family]), "layer_types": layers[family]}
            model = random_checkpoint(folder / "model", family, **sizes)
            built[family, dtype] = build_cuda_bundle(model, folder / family, replace(OPTIONS, dtype=dtype))
        return built[family, dtype]

    return get


def check(
    library: Path | None,
    out: Path,
    *arguments: str,
    computing: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> tuple[int, str, dict[str, Any]]:
    """The script in a process of its own, with the stub for the driver: exit code, stderr, check.json."""
    folder = out.parent / "python"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(COMPUTING, encoding="utf-8")
    path = os.pathsep.join(map(str, (folder, ROOT / "tests")))
    settings = {**os.environ, "PYTHONPATH": path, **(environment(library, {}) if library else {}), **(variables or {})}
    if computing:
        settings["BUNDLE_UNDER_CHECK"] = str(computing)
    command = [sys.executable, str(SCRIPTS / "gpu_check.py"), *arguments, "--out", str(out), *FEW]
    ran = subprocess.run(command, env=settings, capture_output=True, encoding="utf-8", check=False)
    file = out / "check.json"
    return ran.returncode, ran.stderr, json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def pieces_of(document: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return document["bundles"][number]["pieces"]


def functions_of(bundle: Path) -> set[str]:
    """Every kernel that the bundle has for the target."""
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    return {kernel["function"] for kernel in manifest["targets"][TARGET]["kernels"].values()}


@pytest.mark.parametrize(("family", "dtype"), [("qwen3_5", "bfloat16"), ("qwen3", "float32")])
def test_parity_compares_every_kernel_of_the_bundle(
    stub_library: Path, bundle: Callable[[str, str], Path], tmp_path: Path, family: str, dtype: str
):
    chosen = bundle(family, dtype)
    code, shown, document = check(
        stub_library, tmp_path / "out", str(chosen), "--only", "parity,tokens", computing=chosen
    )
    assert code == 0, shown
    parity, tokens = pieces_of(document)["parity"], pieces_of(document)["tokens"]
    assert parity["status"] == tokens["status"] == "passed"
    (lines,) = parity["tables"].values()
    assert {name for line in lines for name in line["kernels"].split(" + ")} == functions_of(chosen)
    assert all(line["of what is allowed"] <= 1 for line in lines)
    if dtype == "float32":  # in other orders of summation, but with the same numbers
        assert max(line["relative error"] for line in lines) < 1e-5


def test_parity_names_the_kernel_that_computes_something_else(
    stub_library: Path, bundle: Callable[[str, str], Path], tmp_path: Path
):
    """What reads the wrong number does right with it."""
    chosen = bundle("qwen3", "float32")
    code, shown, document = check(
        stub_library, tmp_path / "out", str(chosen), "--only", "parity", computing=chosen, variables=BROKEN_SILU
    )
    assert code == 1, shown
    failures = pieces_of(document)["parity"]["failures"]
    assert failures
    assert all("silu.silu_mul" in failure and "0.mlp.act[0, 0]" in failure for failure in failures)
    (lines,) = pieces_of(document)["parity"]["tables"].values()
    assert {line["kernels"] for line in lines if line["of what is allowed"] > 1} == {"silu.silu_mul"}
    page = (tmp_path / "out" / "check.md").read_text(encoding="utf-8")
    assert "**1 of 1 checks failed**" in page


def test_kernels_that_do_nothing_fail_parity_which_runs_to_its_end(
    stub_library: Path, bundle: Callable[[str, str], Path], tmp_path: Path
):
    chosen = bundle("qwen3_5", "float32")
    code, shown, document = check(stub_library, tmp_path / "out", str(chosen), "--only", "parity")
    assert code == 1, shown
    failures = pieces_of(document)["parity"]["failures"]
    assert "rows.rows_prefill" in failures[0]
    named = {name for name in functions_of(chosen) if any(name in failure for failure in failures)}
    assert named == functions_of(chosen)


def test_the_same_steps_give_the_same_bits_in_every_bucket(
    stub_library: Path, bundle: Callable[[str, str], Path], tmp_path: Path
):
    chosen = bundle("qwen3", "bfloat16")
    code, shown, document = check(
        stub_library, tmp_path / "out", str(chosen), "--only", "determinism", computing=chosen
    )
    assert code == 0, shown
    (lines,) = pieces_of(document)["determinism"]["tables"].values()
    buckets = json.loads((chosen / "manifest.json").read_text(encoding="utf-8"))["buckets"]
    assert {line["bucket"] for line in lines} == {bucket["name"] for bucket in buckets}
    assert len({line["logits"] for line in lines if line["bucket"].startswith("decode")}) == 1
    assert len({line["logits"] for line in lines if line["bucket"].startswith("prefill")}) == 1


def test_a_kernel_that_treats_the_first_row_otherwise_gives_other_bits(
    stub_library: Path, bundle: Callable[[str, str], Path], tmp_path: Path
):
    chosen = bundle("qwen3", "bfloat16")
    arguments = str(chosen), "--only", "tokens,determinism"
    code, shown, document = check(stub_library, tmp_path / "out", *arguments, computing=chosen, variables=BROKEN_SILU)
    assert code == 1, shown
    failures = pieces_of(document)["determinism"]["failures"]
    assert failures
    assert all(failure.startswith("decode-b3-c32, ") and "twice" not in failure for failure in failures)


def test_boots_and_times_are_reported_and_a_bundle_that_fails_stops_no_other(
    stub_library: Path, bundle: Callable[[str, str], Path], tmp_path: Path
):
    chosen, damaged = bundle("qwen3", "float32"), tmp_path / "damaged"
    damaged.mkdir()
    names = "host,capture,timing,boot,sanitizer"
    code, shown, document = check(stub_library, tmp_path / "out", str(damaged), str(chosen), "--only", names)
    assert code == 1, shown
    assert {piece["status"] for name, piece in pieces_of(document).items() if name != "sanitizer"} == {"failed"}
    whole = pieces_of(document, 1)
    assert {name: piece["status"] for name, piece in whole.items()} == dict.fromkeys(names.split(",")[:-1], "passed")
    manifest = json.loads((chosen / "manifest.json").read_text(encoding="utf-8"))
    (memory,) = whole["capture"]["tables"]["Device memory of a boot"]
    assert memory["boots"] == 2
    assert memory["planned bytes"] == manifest["targets"][TARGET]["minimum_device_bytes"]
    assert len(whole["capture"]["tables"]["Graphs"]) == len(manifest["buckets"])
    assert {line["bucket"] for line in whole["timing"]["tables"]["Speed of decode buckets"]} == {
        bucket["name"] for bucket in manifest["buckets"] if bucket["program"] == "decode"
    }
    phases = [line["phase"] for line in whole["boot"]["tables"]["Seconds of a boot"]]
    assert {"verify", "upload", "graphs", "all"} <= set(phases)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["check.json", "check.md"]


def test_without_a_gpu_the_exit_code_is_4(bundle: Callable[[str, str], Path], tmp_path: Path):
    empty = {"LD_LIBRARY_PATH": str(tmp_path)}
    code, shown, document = check(None, tmp_path / "out", str(bundle("qwen3", "float32")), variables=empty)
    assert code == 4, shown
    assert "no NVIDIA driver" in document["problem"]


def test_a_piece_that_is_not_known_is_a_wrong_flag(tmp_path: Path):
    code, shown, document = check(None, tmp_path / "out", "bundle", "--only", "parity,color")
    assert (code, document) == (2, {})
    assert "'color' is no piece" in shown


@pytest.mark.parametrize(("code", "status"), [(0, "passed"), (86, "failed")])
def test_what_the_sanitizer_finds_fails(
    stub_library: Path, bundle: Callable[[str, str], Path], tmp_path: Path, code: int, status: str
):
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "compute-sanitizer"
    program.write_text(f'#!/bin/sh\necho "========= Invalid write; $2"\nexit {code}\n', encoding="utf-8")
    program.chmod(0o755)
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    chosen = bundle("qwen3", "float32")
    arguments = str(chosen), "--only", "sanitizer"
    got, shown, document = check(stub_library, tmp_path / "out", *arguments, variables={"PATH": path})
    assert got == (1 if code else 0), shown
    piece = pieces_of(document)["sanitizer"]
    assert piece["status"] == status
    tools = [failure.partition(" ")[0] for failure in piece["failures"] if "Invalid write" in failure]
    assert tools == (["memcheck", "racecheck"] if code else [])


@given(st.sampled_from(["float32", "float16", "bfloat16"]), st.integers(0, 2**32 - 1))
def test_two_units_in_the_last_place_are_allowed_and_three_are_not(dtype: str, seed: int):
    """numpy's nextafter and spacing say what a unit is."""
    kind = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    compare = script("compare").compare
    wanted = np.exp2(np.random.default_rng(seed).uniform(0, 1, (2, 3))).astype(kind)
    unit = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]  # of numbers from 1 to 2
    wanted = np.clip(wanted.astype(np.float64), 1, 1 + unit * (1 / unit // 4)).astype(kind)  # 1 to 1.25
    for units, good in ((2, True), (3, False)):
        got = wanted.copy()
        got[1, 2] = kind(float(wanted[1, 2]) + units * unit)
        assert (compare(got, wanted, dtype, 0.0).share <= 1) == good


def test_a_nan_is_wrong_unless_it_lay_there_before():
    compare = script("compare").compare
    wanted = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    assert compare(wanted.copy(), wanted, "float32", 1.0, garbage=True).share == 0
    found = compare(wanted.copy(), wanted, "float32", 1.0)
    assert (found.share, found.place) == (np.inf, (0, 1))
    got = wanted.copy()
    got[1, 0] = np.nan
    found = compare(got, wanted, "float32", 1.0, garbage=True)
    assert (found.share, found.place) == (np.inf, (1, 0))
    written = np.where(np.isnan(wanted), np.float32(0), wanted)
    assert compare(wanted, written, "float32", 1.0, garbage=True).share == np.inf


def test_integers_are_equal_or_wrong():
    compare = script("compare").compare
    wanted = np.array([3, 4], np.int32)
    assert compare(wanted.copy(), wanted, "int32", 1.0).share == 0
    assert compare(np.array([3, 5], np.int32), wanted, "int32", 1.0).place == (1,)


def test_the_check_imports_only_the_runtimes_install():
    """Beside the standard library: what `pip install qpack-llm[runtime]` brings."""
    files = [SCRIPTS / "gpu_check.py", *sorted((SCRIPTS / "gpu_checks").glob("*.py"))]
    assert len(files) > 10
    allowed = sys.stdlib_module_names | {"click", "numpy", "ml_dtypes", "qpack_runtime", "qpack_schemas", "gpu_checks"}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                assert name.partition(".")[0] in allowed, f"{file} imports {name}"


@pytest.mark.parametrize("name", ["QWEN3_06B", "QWEN3_5_08B", "QWEN3_5_9B"])
def test_a_random_model_has_the_tensors_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two layers of it, small: names and shapes as transformers makes them from the same config."""
    import transformers

    module = script("random_models", package="")
    config = {**getattr(module, name), "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256}
    config |= {"num_hidden_layers": 4, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    if "linear_num_key_heads" in config:
        config |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        config |= {"linear_key_head_dim": 32, "linear_value_head_dim": 16}
    if not config["tie_word_embeddings"]:  # a large one: in shards
        monkeypatch.setattr(module, "SHARD", 500_000)
    folder = module.write_model(tmp_path / "model", config, TINY_QWEN3)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}
    assert dict(module.shapes_of(config)) == wanted
    assert {name: tensor.shape for name, tensor in read_tensors(folder).items()} == wanted
    assert len([*folder.glob("*.safetensors")]) == (1 if tied else 4)
    built = build_cuda_bundle(folder, tmp_path / "bundle", OPTIONS)
    logits = logits_of(built)
    assert np.isfinite(logits).all()
    assert 0.01 < logits.std() < 100


def logits_of(folder: Path) -> np.ndarray:
    opened = open_bundle(folder)
    executor = ReferenceExecutor(opened)
    Engine(executor, opened.manifest).prefill(0, [1, 2, 3])
    return executor.io("prefill-t4-c32")["logits"]


def script(name: str, package: str = "gpu_checks.") -> Any:
    """A module of the scripts, which no install has."""
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    return importlib.import_module(package + name)
