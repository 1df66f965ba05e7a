"""What rules and dashboard are held against: promtool, and the series of a server on a GPU."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fake_nvml import fake_nvml
from promql import grouping_labels, selectors
from qpack_runtime.serve.gpu_gauges import GpuGauges
from qpack_runtime.serve.metrics import Metrics

PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"
OF_PROMETHEUS = {"up": {"job", "instance"}, "ALERTS": {"job", "instance", "alertname", "alertstate"}}
OF_SCRAPES = {"job", "instance"}


@pytest.fixture(scope="session")
def promtool() -> Callable[..., str]:
    """Runs it in the rules' folder; the test fails with its words if it finds something."""
    program = shutil.which("promtool")
    if program is None:
        pytest.fail("the tests need promtool, which comes with Prometheus and `make test` installs")

    def run(*arguments: str) -> str:
        ran = subprocess.run([program, *arguments], cwd=PROMETHEUS, capture_output=True, encoding="utf-8", check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return run


class Served:
    """The labels of every series, by the name of its samples: those that a server has and those that rules record."""

    def __init__(self, exposition: str):
        self.families = list(text_string_to_metric_families(exposition))
        self.series: dict[str, list[dict[str, str]]] = {}
        for family in self.families:
            for sample in family.samples:
                self.series.setdefault(sample.name, []).append(sample.labels)
        self.labels = {name: set().union(*found) | OF_SCRAPES for name, found in self.series.items()} | OF_PROMETHEUS
        for group in yaml.safe_load((PROMETHEUS / "rules.yml").read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                if "record" in rule:
                    self.labels[rule["record"]] = grouping_labels(rule["expr"]) - {"le"} or OF_SCRAPES

    def require(self, expression: str) -> None:
        """Fails unless every metric, label and label value that `expression` names exists."""
        asked = selectors(expression)
        assert asked, f"{expression} selects nothing"
        for selector in asked:
            assert selector.name in self.labels, f"nothing exposes {selector.name}, in {expression}"
            for label, operator, text in selector.matchers:
                assert label in self.labels[selector.name], f"{selector.name} has no label {label}, in {expression}"
                values = {labels[label] for labels in self.series.get(selector.name, []) if label in labels}
                for pattern in (text.split("|") if "~" in operator else [re.escape(text)]) if values else []:
                    assert any(re.fullmatch(pattern, value) for value in values), f"no {label} is {pattern}: {values}"
        known = set().union(*(self.labels[selector.name] for selector in asked))
        assert grouping_labels(expression) <= known, f"a label of the grouping is unknown, in {expression}"


@pytest.fixture(scope="session")
def served() -> Served:
    metrics = Metrics(["/v1/chat/completions", "/v1/completions"])
    metrics.booted(
        version="0.1.0",
        bundle_id="5f0c",
        mode="fast",
        model="tiny-qwen3",
        device="cuda",
        buckets=["decode-b1-c512", "decode-b8-c512", "prefill-t64-c512"],
        slots=8,
        queue_limit=64,
        arena_bytes={"weights": 4096, "state": 2048, "io": 512, "work": 1024},
        phase_seconds={"verify": 0.25, "graphs": 0.5},
        capture_seconds=0.5,
    )
    with pytest.MonkeyPatch.context() as patch:
        fake_nvml(patch)
        metrics.registry.register(GpuGauges())
        return Served(metrics.render().decode("utf-8"))
