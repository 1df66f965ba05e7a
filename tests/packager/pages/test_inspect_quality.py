"""What the inspect page tells of calibration, of rules and of an evaluation, where a bundle has them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from qpack_packager.pages.inspect_page import report
from qpack_packager.pages.quality import read_quality
from qpack_schemas.errors import InputError

from .conftest import BundleOf, Show
from .inspected import SECTIONS, manifest_of, rewritten, table

FIGURES: dict[str, Any] = {
    "perplexity": 12.345678, "perplexity_stderr": 0.25, "ppl_ratio": 1.0123, "ppl_ratio_stderr": None,
    "kl_mean": 0.0123456, "kl_stderr": 0.001, "top1_agreement": 0.95, "nonfinite_tokens": 0, "nonfinite": [],
    "kl_histogram": {"edges": [0.001, 0.01, 0.1, 1.0], "tokens": [5, 40, 30, 20, 5]}, "new_figure": 3,
}  # fmt: skip
QUALITY = {
    "text_sha256": "ab" * 32, "tokens": 4096, "device": "<b>",
    "reference": {"perplexity": 12.0, "perplexity_stderr": 0.2},
    "modes": {"fast": FIGURES, "exact": {**FIGURES, "kl_mean": None}}, "kl_mean": 0.0123456, "modules": [{"bits": 4}],
    "gate": {"max_kl": 0.01, "findings": ["fast: kl_mean is 0.0123, the gate is 0.01"]},
}  # fmt: skip
GATE = {"gate": {"max_ppl_ratio": None, "max_kl": 0.01}, "text_sha256": "cd" * 32, "tokens": 4096, "passed": False}


def facts(page: Any, section: str) -> dict[str, str]:
    return page.locator(f"#{section} dl > div").evaluate_all(
        "(all) => Object.fromEntries(all.map((one) => [...one.children].map((part) => part.textContent)))"
    )


def test_a_measured_quality_is_shown(show: Show, bundle_of: BundleOf, tmp_path: Path):
    bundle = rewritten(Path(shutil.copytree(bundle_of("tiny-qwen3"), tmp_path / "bundle")), quality=GATE)
    (bundle / "quality.json").write_text(json.dumps(QUALITY), encoding="utf-8")
    page = show(report(bundle))
    section = page.locator("#quality")
    assert section.locator(".verdict").all_inner_texts() == [
        "The gate was missed.", "fast: kl_mean is 0.0123, the gate is 0.01"]  # fmt: skip
    assert {cells[0]: cells[1:] for cells, _ in table(page, "What was measured")} == {
        "perplexity": ["12.346 ± 0.25"] * 2,
        "perplexity over the checkpoint's": ["1.0123"] * 2,
        "mean KL divergence, nats": ["0.012346 ± 0.001", "-"],
        "share of the same likeliest tokens": ["0.95"] * 2,
        "tokens without finite logits": ["0"] * 2,
        "new figure": ["3"] * 2,
    }
    assert facts(page, "quality") == {
        "perplexity ratio at most": "no limit", "mean KL at most": "0.01", "tokens of the gate": "4,096",
        "text of the gate": "cd" * 32, "tokens": "4,096", "device": "<b>", "reference perplexity": "12 ± 0.2",
        "text": "ab" * 32,
    }  # fmt: skip
    assert page.locator("header .tile", has_text="Perplexity ratio").locator("data").inner_text() == "1.0123"
    for place, mode in enumerate(("fast", "exact")):
        chart = section.locator("svg.chart").nth(place)
        assert chart.get_attribute("aria-label") == f"KL divergence of 100 tokens, {mode}"
        bars = "(all) => all.map((one) => ['x', 'width', 'height'].map((side) => parseFloat(one.getAttribute(side))))"
        drawn = chart.locator(".mark").evaluate_all(bars)
        assert [height for _, _, height in drawn] == pytest.approx([100 * n / 40 for n in (5, 40, 30, 20, 5)], abs=0.01)
        assert [x for x, _, _ in drawn] == pytest.approx([0, 20, 40, 60, 80], abs=0.01)  # a decade each
    assert section.locator("figcaption").first.inner_text().startswith("KL divergence token by token: 25.0 % are 0.1")


def test_a_bundle_that_was_only_gated_or_only_evaluated_shows_what_there_is(
    show: Show, bundle_of: BundleOf, tmp_path: Path
):
    gated = rewritten(
        Path(shutil.copytree(bundle_of("tiny-qwen3"), tmp_path / "gated")), quality={**GATE, "passed": True}
    )
    page = show(report(gated))
    assert page.locator("#quality .verdict").all_inner_texts() == ["The gate was passed."]
    assert page.locator("#quality table").count() == 0
    evaluated = Path(shutil.copytree(bundle_of("tiny-qwen3"), tmp_path / "evaluated"))
    plain = {name: value for name, value in FIGURES.items() if name != "kl_histogram"}
    document = {
        "text_sha256": "ab" * 32,
        "modes": {"cuda": {**plain, "ppl_ratio": None}},
        "gate": None,
        "reference": None,
    }
    (evaluated / "quality.json").write_text(json.dumps(document), encoding="utf-8")
    page = show(report(evaluated))
    assert page.locator("#quality .verdict").count() == page.locator("#quality svg").count() == 0
    assert len(table(page, "What was measured")) == 6
    assert page.locator("main > section").count() == len(SECTIONS)


@pytest.mark.parametrize("text", ["[]", "{}", '{"modes": []}'])
def test_a_quality_file_that_is_none_is_an_error(text: str, tmp_path: Path):
    assert read_quality(tmp_path) is None
    (tmp_path / "quality.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="holds no figures"):
        read_quality(tmp_path)


def test_what_calibration_did_to_outputs_is_shown(show: Show, bundle_of: BundleOf, tmp_path: Path):
    """Each module twice: as it is stored, and hollow as rounding to nearest would have made it."""
    bundle = Path(shutil.copytree(bundle_of("tiny-qwen3_5"), tmp_path / "bundle"))
    log = [json.loads(line) for line in (bundle / "quant_log.jsonl").read_text(encoding="utf-8").splitlines()]
    errors: dict[str, tuple[float, float]] = {}
    for number, module in enumerate(line for line in log if line["bits"] == 4):
        one = errors[module["module"]] = (0.04 + number / 1000, 0.08 + number / 1000)
        reason = "the Hessian holds NaN or infinity" if number == 3 else None
        module |= {"method": "gptq", "output_error": one[0], "rtn_output_error": one[1], "fallback": reason}
    quant = manifest_of(bundle)["quant"]
    quant |= {"method": "gptq", "calibration_sha256": "ef" * 32, "fallbacks": ["layers.0.mlp.down"]}
    quant |= {"rules": [{"glob": "*.v_proj.weight", "form": "int8"}], "environment": {"torch": "2.13.0"}}
    lines = "".join(json.dumps(line) + "\n" for line in log).encode("ascii")
    page = show(report(rewritten(bundle, lines, quant=quant)))
    chart = page.locator('svg.chart[aria-label^="Relative error of the outputs"]')
    points = chart.locator("circle").evaluate_all(
        "(all) => all.map((one) => [one.textContent, one.matches('.hollow'), parseFloat(one.getAttribute('cy'))])"
    )
    top = 0.1
    assert len(points) == 2 * len(errors)
    for title, hollow, height in points:
        module, _, told = title.partition(", ")
        error = errors[module][hollow]
        assert told.startswith(f"{'rounded to nearest' if hollow else 'as stored'}: {100 * error:.2f} %")
        assert (100 - height) / 100 == pytest.approx(error / top, abs=1e-3)
    assert sum("NaN or infinity" in title for title, _, _ in points) == 2
    shown = facts(page, "quantization")
    assert shown == {
        "calibration text": "ef" * 32, "torch": "2.13.0", "int8 by rule": "*.v_proj.weight",
        "rounded to nearest all the same": "layers.0.mlp.down",
    }  # fmt: skip
