"""`qpack kernels`: what compiled code says, as another disassembler's user would read it."""

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from bundles import ASSETS, build_bundle
from qpack_packager.cli import main
from qpack_packager.cuda.compiler.toolchain import tool
from qpack_packager.serving import Options

OPTIONS = Options(batches=(1,), contexts=(64,), prefills=(16,), slots=1, targets=("cuda:sm_89",))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Really compiled, for one architecture and its PTX."""
    return build_bundle(ASSETS / "tiny-qwen3", tmp_path_factory.mktemp("kernels") / "bundle", OPTIONS)


def report(bundle: Path, *flags: str):
    return CliRunner().invoke(main, ["kernels", str(bundle), *flags])


def test_registers_and_spills_are_what_cuobjdump_says(bundle: Path):
    facts = json.loads(report(bundle, "--format", "json").stdout)["targets"]["cuda:sm_89"]
    for kernel in facts["kernels"]:
        file = bundle / "kernels" / "sm_89" / f"{kernel['name']}.cubin"
        said = subprocess.run(
            [tool("cuobjdump"), "-res-usage", file], capture_output=True, encoding="ascii", check=True
        ).stdout
        assert f"REG:{kernel['registers']} " in said
        assert f"STACK:{kernel['spills']} " in said


def test_launches_add_up_and_products_use_tensor_cores(bundle: Path):
    facts = json.loads(report(bundle, "--format", "json").stdout)["targets"]["cuda:sm_89"]
    assert sum(kernel["launches"] for kernel in facts["kernels"]) == sum(facts["launches"].values())
    products = [kernel for kernel in facts["kernels"] if "linear_int4" in kernel["function"]]
    assert products
    assert all(kernel["tensor_instructions"] > 0 for kernel in products)
    assert all("128" in kernel["loads"] for kernel in products)


def test_a_predicted_step_is_the_roofline_and_the_launches(bundle: Path):
    facts = json.loads(report(bundle, "--format", "json").stdout)["targets"]["cuda:sm_89"]
    for step in facts["steps"]:
        assert step["predicted_us"] == pytest.approx(step["roofline_us"] + 1.3 * facts["launches"]["decode"], abs=0.2)
    assert {"L4", "GeForce RTX 4090"} <= {step["device"] for step in facts["steps"]}


def test_the_text_names_every_target_and_kernel(bundle: Path):
    text = report(bundle).stdout
    assert "cuda:sm_89: 44 launches a decode step" in text
    for file in (bundle / "kernels" / "sm_89").glob("*.cubin"):
        assert file.stem in text


def test_a_bundle_for_cpus_only_is_told_how_to_get_kernels(tiny_bundle):
    result = report(tiny_bundle("tiny-qwen3"))
    assert result.exit_code == 1
    assert "--target cuda:sm_89" in result.stderr


def test_the_really_compiled_bundle_decodes_on_the_stub(bundle: Path, tmp_path: Path):
    """True cubins through executor, stub and interpreter; the other tests use stand-ins with the same arguments."""
    from cuda_client import build_stub
    from cuda_host import run_runtime

    library = build_stub(tmp_path)
    flags = ("--prompt", "And", "--max-tokens", "3", "--format", "json")
    gpu = run_runtime(library, "generate", str(bundle), "--device", "cuda", *flags, settings={}, computing=True)
    reference = run_runtime(library, "generate", str(bundle), "--device", "reference", *flags, settings={})
    assert gpu.returncode == 0, gpu.stderr
    assert json.loads(gpu.stdout)["output_ids"] == json.loads(reference.stdout)["output_ids"]
