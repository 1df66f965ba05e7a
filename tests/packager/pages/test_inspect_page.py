"""The numbers and drawings of the inspect page, against the bundle's files as plain JSON reads them."""

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest

from bundles import own_files

from .conftest import BundleOf, PageOf
from .inspected import KINDS, NAMES, bytes_in, manifest_of, number, quant_log, table, titles

ITEM_BYTES = {"float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "int8": 1}


@pytest.mark.parametrize("name", NAMES)
def test_the_big_numbers_are_those_of_the_files(name: str, page_of: PageOf, bundle_of: BundleOf):
    bundle = bundle_of(name)
    manifest, page = manifest_of(bundle), page_of(name)
    assert number(page, "On disk") == sum(file.stat().st_size for file in own_files(bundle))
    assert number(page, "Device memory") == manifest["memory"]["minimum_device_bytes"]
    assert number(page, "Weights") == manifest["memory"]["weights_bytes"]
    assert number(page, "Serves") == manifest["slots"]
    errors = [source["relative_rms_error"] for source in quant_log(bundle) if source["bits"] == 4]
    assert number(page, "Error of weights") == pytest.approx(median(errors))
    for term, field in (("hidden size", "hidden_size"), ("MLP size", "intermediate_size"), ("key heads", "kv_heads"),
                        ("query heads", "attention_heads"), ("head size", "head_dim"), ("ids", "real_vocab_size"),
                        ("model's context", "max_context")):  # fmt: skip
        assert number(page, term) == manifest["model"][field]
    assert number(page, "layers") == len(manifest["model"]["layers"]) == page.locator(".strip li").count()
    digests = page.locator("header .digest").all_inner_texts()
    assert digests == [manifest_digest(bundle)]


def manifest_digest(bundle: Path) -> str:
    ran = subprocess.run(["sha256sum", bundle / "manifest.json"], capture_output=True, check=True, encoding="ascii")
    return ran.stdout.split()[0]


@pytest.mark.parametrize("name", [*NAMES, "cuda"])
def test_all_numbers_say_what_they_are(name: str, page_of: PageOf):
    """What is read and the exact number behind it are the same number, rounded."""
    page = page_of(name)
    units = {"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "%": 0.01}
    shown = page.locator("data").evaluate_all("(all) => all.map((one) => [one.textContent, Number(one.value)])")
    assert len(shown) > 80
    for text, exact in shown:
        read, _, unit = text.replace(",", "").partition(" ")
        decimals = len(read.partition(".")[2])
        assert float(read) * units[unit] == pytest.approx(exact, abs=0.501 * units[unit] / 10**decimals), text


@pytest.mark.parametrize("name", KINDS)
def test_the_tables_are_the_manifest(name: str, page_of: PageOf, bundle_of: BundleOf):
    bundle = bundle_of(name)
    manifest, page = manifest_of(bundle), page_of(name)
    memory, by_name = manifest["memory"], {bucket["name"]: bucket for bucket in manifest["buckets"]}
    buckets = [
        (name, [by_name[name]["rows"], by_name[name]["context"], memory["work_bytes"][name]])
        for name in manifest["capture_order"]
    ]
    assert [(cells[1], numbers) for cells, numbers in table(page, "Shapes of the buckets")] == buckets
    assert [cells[0] for cells, _ in table(page, "Shapes of the buckets")] == [str(n + 1) for n in range(len(buckets))]

    for label, files in (("checkpoint", manifest["source"]["files"]), ("bundle", manifest["files"])):
        listed = [(cells[0], numbers[0], cells[2]) for cells, numbers in table(page, f"Files of the {label}")]
        assert listed[label == "bundle" :] == [(file["path"], file["bytes"], file["sha256"]) for file in files]

    counts, rows = manifest["quant"]["tensors"], table(page, "Tensors that were not quantized")
    assert rows[0][1] == [counts["quantized"]]
    rules = [("kept", rule) for rule in manifest["quant"]["kept"]]
    rules += [("dropped", rule) for rule in manifest["quant"]["dropped"]]
    said = [(cells[0], {"glob": cells[1], "tensors": numbers[0], "reason": cells[3]}) for cells, numbers in rows[1:]]
    assert said == rules

    texts = [
        (file["path"], file["encoding"], file["known_by"], "removed" if file["bom"] else "none", file["newlines"],
         "unchanged" if file["sha256"] == file["source_sha256"] else "rewritten")
        for file in manifest["text"]
    ]  # fmt: skip
    assert [tuple(cells) for cells, _ in table(page, "How text files were read")] == texts


@pytest.mark.parametrize("name", NAMES)
def test_the_arenas_are_to_scale_and_their_purposes_add_up(name: str, page_of: PageOf, bundle_of: BundleOf):
    bundle = bundle_of(name)
    memory, page = manifest_of(bundle)["memory"], page_of(name)
    sizes = [memory["weights_bytes"], memory["state_bytes"], max(memory["work_bytes"].values()), memory["io_bytes"]]
    chart = page.locator('svg.chart[aria-label^="Device memory"]')
    widths = chart.locator(".mark").evaluate_all("(all) => all.map((one) => one.getBBox().width)")
    whole = chart.evaluate("(chart) => chart.getBoundingClientRect().width")
    assert widths == pytest.approx([whole * size / sum(sizes) for size in sizes], abs=0.05)
    assert sum(sizes) == memory["minimum_device_bytes"]
    sums: dict[str, float] = {}
    arena = ""
    for cells, numbers in table(page, "Memory by purpose"):
        arena = cells[0] or arena
        sums[arena] = sums.get(arena, 0) + numbers[0]
    assert [sums[arena] for arena in ("weights", "state", "work", "io")] == sizes


def plan_of(bundle: Path, kind: str) -> tuple[dict[str, tuple[int, int, int, int]], int]:
    """Work buffer -> (first instruction, last one, offset, bytes), and the bytes of a row; from the JSON alone."""
    program = json.loads((bundle / "programs" / f"{kind}.json").read_bytes())
    found: dict[str, tuple[int, int, int, int]] = {}
    for index, instruction in enumerate(program["code"]):
        for part in ("inputs", "outputs", "updates"):
            for name in instruction.get(part, {}).values():
                buffer = program["buffers"].get(name)
                if buffer and buffer["arena"] == "work":
                    size = ITEM_BYTES[buffer["dtype"]]
                    for dim in buffer["shape"]:
                        size *= 1 if dim == "R" else dim
                    found[name] = (found[name][0] if name in found else index, index, buffer["offset"], size)
    return found, max(offset + -(-size // 256) * 256 for _, _, offset, size in found.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_map_of_the_work_arena_is_the_plan(name: str, page_of: PageOf, bundle_of: BundleOf):
    bundle = bundle_of(name)
    page = page_of(name)
    maps = page.locator("svg.map")
    assert maps.count() == 2
    for place, kind in enumerate(("decode", "prefill")):
        plan, peak = plan_of(bundle, kind)
        read = "(all) => all.map((one) => ['x', 'y', 'width', 'height'].map((side) => Number(one.getAttribute(side))))"
        drawn = maps.nth(place).locator(".mark").evaluate_all(read)
        assert sorted(map(tuple, drawn)) == sorted(
            (first, peak - offset - size, last + 1 - first, size) for first, last, offset, size in plan.values()
        )
        told = maps.nth(place).locator("title").all_text_contents()
        assert sorted(title.partition(":")[0] for title in told) == sorted(plan)
        caption = maps.nth(place).locator("xpath=ancestor::figure").locator("figcaption").inner_text()
        assert caption.startswith(f"{len(plan)} buffers")
        for (ax, ay, aw, ah), (bx, by, bw, bh) in combinations(drawn, 2):
            assert ax + aw <= bx or bx + bw <= ax or ay + ah <= by or by + bh <= ay


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_of_a_step_are_the_same_by_layer_by_instruction_and_in_all(name: str, page_of: PageOf):
    page = page_of(name)
    rows = table(page, "Bytes of a decode step")
    for _, (weights, kv, recurrent, step, _) in rows:
        assert weights + kv + recurrent == step
    smallest = rows[0][1][3]
    assert number(page, "Moved per token") == smallest  # of a batch of one
    assert sum(map(bytes_in, titles(page, "Bytes moved by each layer"))) == smallest
    assert sum(map(bytes_in, titles(page, "Bytes moved by each kind"))) == smallest


@pytest.mark.parametrize("name", NAMES)
def test_the_quantization_errors_are_the_log(name: str, page_of: PageOf, bundle_of: BundleOf):
    bundle = bundle_of(name)
    log, page = quant_log(bundle), page_of(name)
    named = {f"{one['tensor']} {one['part']}".rstrip(): one["relative_rms_error"] for one in log}
    in_layers = {name: error for name, error in named.items() if ".layers." in name}
    chart = page.locator('svg.chart[aria-label^="Relative error"]')
    points = chart.locator("circle.mark").evaluate_all(
        "(all) => all.map((one) => [one.querySelector('title').textContent, parseFloat(one.getAttribute('cy'))])"
    )
    assert sorted(title.partition(":")[0] for title, _ in points) == sorted(in_layers)
    top = float(re.findall(r"(\d+) %", " ".join(chart.locator("text").all_text_contents()))[-1]) / 100
    for title, height in points:
        error = named[title.partition(":")[0]]
        assert f": {100 * error:.2f} %" in title
        assert (100 - height) / 100 == pytest.approx(error / top, abs=1e-3)
    worst = sorted(named.values(), reverse=True)[:10]
    assert [numbers for _, numbers in table(page, "Tensors with the largest error")] == [[error] for error in worst]
    assert all(named[cells[0]] == numbers[0] for cells, numbers in table(page, "Tensors with the largest error"))


def test_the_gpu_targets_are_the_manifest_and_their_tables(page_of: PageOf, bundle_of: BundleOf):
    bundle = bundle_of("cuda")
    manifest, page = manifest_of(bundle), page_of("cuda")
    targets = {name: entry for name, entry in manifest["targets"].items() if name != "cpu"}
    sizes = {file["path"]: file["bytes"] for file in manifest["files"]}
    overview = {cells[0]: (cells, numbers) for cells, numbers in table(page, "What each target needs")}
    assert sorted(overview) == sorted(targets) == ["cuda:ptx_120", "cuda:sm_120", "cuda:sm_89"]
    for name, target in targets.items():
        kernels = target["kernels"]
        code = sum(sizes[kernel["file"]] for kernel in kernels.values())
        assert overview[name][1] == [len(kernels), code, target["minimum_device_bytes"]]
        launched: dict[str, list[str]] = {}
        for kind in ("decode", "prefill"):
            file = bundle / "kernels" / name.removeprefix("cuda:") / f"{kind}.json"
            launches = json.loads(file.read_bytes())["launches"]
            launched[kind] = [launch["kernel"] for launch in launches]
        for cells, numbers in table(page, f"Kernels of {name}"):
            kernel = kernels.pop(cells[0])
            for column, kind in ((1, "decode"), (2, "prefill")):
                assert cells[column] == str(launched[kind].count(cells[0]) or "")
            registers, spills = ("?" if kernel[key] is None else str(kernel[key]) for key in ("registers", "spills"))
            assert (cells[3], cells[5], cells[7]) == (registers, spills, str(kernel["block"]))
            assert numbers == [kernel["shared_bytes"]]
        assert kernels == {}
    devices = {cells[0]: cells[2] for cells, _ in table(page, "Devices")}
    assert (devices["L4"], devices["GeForce RTX 5090"], devices["DGX Spark"]) == (
        "cuda:sm_89", "cuda:sm_120", "cuda:ptx_120")  # fmt: skip
    assert devices["A100 SXM 80GB"] == "no kernels"
    assert page.locator("#speed circle.hollow").count() == 2 * list(devices.values()).count("no kernels")


@pytest.mark.parametrize("name", KINDS)
def test_the_bounds_are_bytes_over_bandwidth(name: str, page_of: PageOf):
    """At most: what is moved, over the data sheet's bandwidth, and 1.3 us a launch (docs/performance.md)."""
    page = page_of(name)
    steps = table(page, "Bytes of a decode step")
    moved = {int(cells[0]): numbers[3] for cells, numbers in steps}
    launches = 41 if name == "cuda" else 0
    sheet = {"L4": 300e9, "H100 SXM": 3350e9, "T4": 320e9}
    rows = {cells[0]: cells for cells, _ in table(page, "Devices")}
    for device, bandwidth in sheet.items():
        for place, (batch, size) in enumerate(moved.items()):
            cell = rows[device][place - len(moved)].replace(",", "").split()
            assert float(cell[-1]) == pytest.approx(batch / (size / bandwidth + launches * 1.3e-6), rel=1e-3)
            if launches:
                assert float(cell[0]) == pytest.approx(batch * bandwidth / size, rel=1e-3)
