"""`qpack-runtime bench --device cuda` on the stub: which report it writes, not how fast anything is."""

import json
from collections.abc import Callable
from pathlib import Path

from cuda_host import TARGET, run_runtime
from qpack_schemas.schema_check import check_schema


def test_a_gpu_is_measured_with_the_bandwidth_of_its_own_memory(
    stub_library: Path, cuda_bundle: Callable[[str, str], Path]
):
    few = ("--batch", "1,4", "--context", "20", "--prefill", "5", "--steps", "3", "--format", "json")
    bundle = str(cuda_bundle("tiny-qwen3_5", "float32"))
    ran = run_runtime(stub_library, "bench", bundle, "--device", "cuda", *few, settings={})
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert check_schema(report, "bench.v1.schema.json", "report") == []
    assert (report["device"], report["host"]["instructions"], report["host"]["threads"]) == ("cuda", TARGET, None)
    assert [(row["phase"], row["batch"]) for row in report["rows"]] == [("decode", 1), ("decode", 4), ("prefill", 1)]
    assert "upload_s" in report["boot"]
