"""The CPU executor around its kernels: memory, threads, code paths, and what it refuses."""

import gc
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundles import ASSETS, SMALL, build_bundle
from checkpoints import random_checkpoint
from instruction import kernels
from qpack_runtime.boot import boot
from qpack_runtime.cpu import native, packed
from qpack_runtime.cpu.executor import CpuExecutor
from qpack_runtime.cpu.host import default_threads
from qpack_runtime.engine import Engine
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.errors import FitError, QpackError, UnsupportedError, UsageError
from qpack_schemas.instructions import INSTRUCTIONS, Signature
from server_process import PATIENCE

unwatched = pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer has memory and limits of its own")


@pytest.fixture(scope="module")
def path(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3_5")


@pytest.fixture(scope="module")
def bundle(path: Path) -> Bundle:
    return open_bundle(path)


def python(code: str, *arguments: str | Path) -> Any:
    """What a process of its own prints, as JSON."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


SERVE = """
import gc, json, random, sys
from pathlib import Path
from qpack_runtime.boot import boot
from qpack_runtime.sampling_options import SamplingOptions

def memory():
    gc.collect()
    with open("/proc/self/status", encoding="ascii") as file:
        status = dict(line.split(":") for line in file)
    with open("/proc/self/maps", encoding="ascii") as file:
        return {name: int(status[name].split()[0]) for name in ("VmSize", "VmData")} | {"maps": len(file.readlines())}

rng = random.Random(0)
options = [
    SamplingOptions(),
    SamplingOptions(temperature=1.0, top_k=40, top_p=0.9, seed=3),
    SamplingOptions(temperature=0.7, min_p=0.05, repetition_penalty=1.2, logprobs=True),
    SamplingOptions(frequency_penalty=0.5, logit_bias={5: 1.0, 7: -2.0}),
]
engine = boot(Path(sys.argv[1]), "cpu", threads=1).engine
for slot in range(engine.slots):
    engine.prefill(slot, [5])

def serve(steps):
    end = engine.runs.total() + steps
    while engine.runs.total() < end:
        slots = [slot for slot in range(engine.slots) if engine.positions[slot] < engine.context]
        if len(slots) < engine.slots or rng.random() < 0.1:
            prompt = [rng.randrange(engine.vocab) for _ in range(rng.randint(1, 100))]
            engine.prefill(rng.randrange(engine.slots), prompt, rng.choice(options))
        else:
            engine.decode(rng.sample(slots, rng.randint(1, len(slots))))

serve(5000)
before = memory()
serve(10_000)
print(json.dumps([before, memory()]))
"""


@unwatched
def test_10000_steps_of_mixed_requests_take_no_more_memory(path: Path):
    """100 bytes a step would be a MB; what the heap is extended by at a time is less."""
    before, after = python(SERVE, path)
    assert after["VmSize"] - before["VmSize"] < 1024  # kB
    assert after["VmData"] - before["VmData"] < 1024
    assert after["maps"] - before["maps"] < 8


BOOT = """
import json, sys
from pathlib import Path
from qpack_runtime.cpu.executor import CpuExecutor
from qpack_schemas.bundle import open_bundle

def memory(name):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))

bundle = open_bundle(Path(sys.argv[1]))
before = memory("VmRSS"), memory("VmHWM")
executor = CpuExecutor(bundle, threads=1)
arenas = [executor._scratch, *(getattr(executor.arenas, name) for name in ("state", "io", "work"))]
print(json.dumps({
    "before": before, "after": [memory("VmRSS"), memory("VmHWM")],
    "packed": sum(packed.nbytes for packed in executor._packed.values()),
    "largest": max(packed.nbytes for packed in executor._packed.values()),
    "arenas": sum(array.nbytes for array in arenas),
}))
"""


@unwatched
def test_memory_holds_each_quantized_weight_once(tmp_path: Path):
    """At no time of the boot more than one of them twice. The kernel reads files ahead, and Python takes a little."""
    sizes: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 3}
    model = random_checkpoint(tmp_path / "model", "qwen3", **sizes)
    facts = python(BOOT, build_bundle(model, tmp_path / "bundle"))
    slack = 3 << 20
    assert facts["packed"] > 4 * slack
    (before, peak_before), (after, peak) = facts["before"], facts["after"]
    assert after - before < facts["packed"] + facts["arenas"] + slack
    assert peak < max(peak_before, before + facts["packed"] + facts["arenas"] + facts["largest"] + slack)


def test_each_weight_is_packed_once_whoever_names_it(tmp_path: Path):
    """A tied int8 matrix is head and embedding, in two programs."""
    options = replace(SMALL, lm_head="int8", embedding="int8")
    bundle = open_bundle(build_bundle(ASSETS / "tiny-qwen3", tmp_path / "bundle", options))
    executor = CpuExecutor(bundle, threads=1)
    calls: Counter[str] = Counter()
    for name in ("pack_int4", "pack_int8"):
        function = getattr(executor.team.kernels, name)

        def counted(*arguments: Any, name: str = name, function: Callable[..., None] = function) -> None:
            calls[name] += 1
            function(*arguments)

        setattr(executor.team.kernels, name, counted)
    packed.pack(bundle, executor.arenas, executor.team)
    forms = Counter(tensor["form"] for tensor in bundle.manifest["tensors"].values())
    assert calls == {"pack_int4": forms["marlin_codes"], "pack_int8": 1}
    assert forms["int8_codes"] == 1
    ops = list(executor.team.kernels.operands)
    places = {"embed_int8": 1, "linear_int8": 1}  # of the codes among the operands
    named = {
        (ops[one.op], one.operands[places[ops[one.op]]].data)
        for program in executor._bound
        for one in program.code[: program.count]
        if ops[one.op] in places
    }
    assert named == {(op, executor._packed["embed.q"].ctypes.data) for op in places}


def test_a_step_lets_other_python_threads_run(tmp_path: Path):
    """Nothing switches threads here but a thread that waits or leaves the interpreter: the other one gets on only while
    a step is computed."""
    executor = CpuExecutor(open_bundle(build_bundle(ASSETS / "tiny-qwen3", tmp_path / "bundle")), threads=1)
    Engine(executor, open_bundle(tmp_path / "bundle").manifest).prefill(0, [5] * 64)
    turns, stopped = 0, False

    def other() -> None:
        nonlocal turns
        while not stopped:
            turns += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    thread = threading.Thread(target=other)
    try:
        thread.start()
        for _ in range(10_000):
            before = turns
            executor.run("prefill-t64-c64")
            if turns > before:
                break
        else:
            pytest.fail("no step let another thread run")
    finally:
        stopped = True
        sys.setswitchinterval(interval)
        thread.join()


def tasks() -> set[str]:
    """Threads of this process, by the system's ids."""
    return set(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_an_executor_has_its_threads_until_it_is_gone(bundle: Bundle, threads: int):
    before = tasks()  # other tests' threads may end meanwhile
    executor = CpuExecutor(bundle, threads=threads)
    own = tasks() - before
    assert len(own) == threads - 1
    assert executor.facts["threads"] == threads
    del executor
    gc.collect()
    end = time.monotonic() + PATIENCE
    while tasks() & own and time.monotonic() < end:  # Linux lists a thread for a moment after it was joined
        time.sleep(0.001)
    assert not tasks() & own


def test_without_wishes_it_is_fast_on_every_core_and_the_best_path(path: Path):
    booted = boot(path)
    assert booted.device == "cpu"
    assert booted.notes == []
    assert booted.facts == {"mode": "fast", "threads": default_threads(), "code_path": kernels().paths[0]}
    assert {"verify", "map", "pack", "bind", "tokenizer"} == booted.seconds.keys()


@pytest.mark.parametrize("code_path", kernels().paths)
@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_mode_threads_and_code_path_are_those_asked_for(path: Path, mode: Any, code_path: str):
    booted = boot(path, "cpu", mode=mode, threads=3, code_path=code_path)
    assert booted.facts == {"mode": mode, "threads": 3, "code_path": code_path}
    assert isinstance(booted.executor, CpuExecutor)
    assert {bool(program.fast) for program in booted.executor._bound} == {mode == "fast"}
    assert booted.executor.team.path == code_path


def refused(error: type[QpackError], run: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The message, which must hold a remedy."""
    with pytest.raises(error) as caught:
        run(*arguments, **options)
    assert caught.value.remedy
    return str(caught.value)


def test_a_code_path_that_is_not_here_is_refused_with_those_that_are(path: Path):
    there = kernels().paths
    absent = next(name for name in ("neon", "avx512") if name not in there)
    message = refused(UsageError, boot, path, "cpu", code_path=absent)
    assert absent in message
    assert ", ".join(there) in message
    gc.collect()  # what was not made leaves without a word


@pytest.mark.parametrize("device", ["reference", "cuda"])
@pytest.mark.parametrize("wish", [{"mode": "exact"}, {"threads": 2}, {"code_path": "portable"}])
def test_wishes_for_the_cpu_are_refused_elsewhere(path: Path, device: Any, wish: dict[str, Any]):
    message = refused(UsageError, boot, path, device, **wish)
    assert device in message
    assert "--mode, --threads and --code-path" in message


def test_without_the_library_a_boot_is_the_reference_s_and_says_so(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "absent.so")
    booted = boot(path)
    assert booted.device == "reference"
    assert len(booted.notes) == 1
    assert "no CPU kernels" in booted.notes[0]
    message = refused(UnsupportedError, boot, path, "cpu")
    assert "no CPU kernels" in message
    assert "--device reference" in message


def test_a_library_that_can_not_be_loaded_is_refused(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"\x7fELF and no more")
    monkeypatch.setattr(native, "LIBRARY", broken)
    message = refused(UnsupportedError, boot, path)
    assert str(broken) in message
    assert "install" in message


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("rms_norm_2", lambda line: line),
        ("embed", lambda line: replace(line, operands={**line.operands, "scale": None})),
        ("sample", lambda line: replace(line, attributes={})),
    ],
)
def test_a_library_of_another_instruction_set_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, op: str, change: Callable[[Signature], Signature]
):
    contract = {**INSTRUCTIONS, op: change(INSTRUCTIONS[op.removesuffix("_2")])}
    monkeypatch.setattr(native, "INSTRUCTIONS", contract)
    message = refused(UnsupportedError, boot, path)
    assert f"another version: {op} differ" in message
    assert "install" in message


@unwatched
def test_a_state_that_is_too_large_for_the_host_is_refused_with_its_bytes(bundle: Bundle):
    memory = {**bundle.manifest["memory"], "state_bytes": 1 << 60}
    too_large = replace(bundle, manifest={**bundle.manifest, "memory": memory})
    message = refused(FitError, CpuExecutor, too_large)
    assert "1,152,921,504" in message
    assert "--slots" in message
    assert "--context" in message


@unwatched
def test_weights_that_are_too_large_for_the_host_are_refused_with_their_bytes(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(packed.Part, "packed_bytes", property(lambda self: 1 << 55))
    message = refused(FitError, CpuExecutor, bundle)
    assert re.search(r"the weights take [\d,]{20,} bytes", message)


THREADS = """
import json, resource, sys
from qpack_runtime.cpu.native import LIBRARY, Kernels, Team
from qpack_schemas.errors import UnsupportedError

kernels = Kernels(LIBRARY)
with open("/proc/self/statm", encoding="ascii") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (100 << 20),) * 2)  # room for the stacks of about ten
try:
    Team(kernels, 500)
except UnsupportedError as error:
    print(json.dumps(str(error)))
Team(kernels, 2).close()
"""


@unwatched
def test_threads_that_the_system_does_not_give_are_refused():
    message = python(THREADS)
    assert "500 threads" in message
    assert "--threads" in message
