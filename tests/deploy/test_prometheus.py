"""The rules for Prometheus: valid, about metrics that exist; each alert is seen to fire and to stay silent."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from promql import Selector, grouping_labels, selectors

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
TABLES = PAGE[PAGE.index("## Metrics") : PAGE.index("## Alerts")]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
TESTS = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text(encoding="utf-8"))["tests"]
CASES = [(case, test) for test in TESTS for case in test["alert_rule_test"]]


def test_promtool_takes_rules_and_example_configuration(promtool: Callable[..., str]):
    assert f"{len(RULES)} rules found" in promtool("check", "rules", "rules.yml")
    promtool("check", "config", "prometheus.yml")


def test_alerts_fire_when_they_should_and_only_then(promtool: Callable[..., str]):
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yml")


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_is_seen_to_fire_on_one_host_of_two(alert: str):
    """The other one is just short of it: it has the same series."""
    (test,) = (test for case, test in CASES if case["alertname"] == alert and case["exp_alerts"])
    (case,) = (case for case in test["alert_rule_test"] if case["exp_alerts"])
    assert [fired["exp_labels"]["instance"] for fired in case["exp_alerts"]] == ["a"]
    names = {
        host: {
            one.name for series in test["input_series"] for one in selectors(series["series"]) if host in instance(one)
        }
        for host in ("a", "b")
    }
    assert names["a"] == names["b"]


def instance(selector: Selector) -> list[str]:
    return [value for label, _, value in selector.matchers if label == "instance"]


@pytest.mark.parametrize("alert", ALERTS)
@pytest.mark.parametrize("host", ["idle", "busy"])
def test_each_alert_is_seen_silent_on_a_host_that_is_well_and_has_its_series(alert: str, host: str):
    (test,) = (test for test in TESTS if any(host in series["series"] for series in test["input_series"]))
    assert {"alertname": alert, "eval_time": "9h", "exp_alerts": []} in test["alert_rule_test"]
    given = {one.name for series in test["input_series"] for one in selectors(series["series"])}
    recorded = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}

    def inputs(expression: str) -> set[str]:
        names = {one.name for one in selectors(expression)}
        return set().union(*(inputs(recorded[name]) if name in recorded else {name} for name in names))

    assert inputs(ALERTS[alert]["expr"]) <= given


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_each_rule_asks_for_series_that_a_server_has(rule, served):
    served.require(rule["expr"])


def test_the_tests_of_the_rules_give_series_that_a_server_has(served):
    for test in TESTS:
        for series in test["input_series"]:
            if 'job="node"' not in series["series"]:
                served.require(series["series"])


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_tells_how_bad_it_is_with_the_value_and_what_to_do(alert: str):
    rule = ALERTS[alert]
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook"}
    assert "$labels.instance" in annotations["summary"]
    assert "$value" in annotations["description"]
    assert annotations["runbook"] == f"docs/monitoring.md#{alert.lower()}"
    section = re.search(rf"^### {alert}\n(\w+)\. ", PAGE, re.MULTILINE)
    assert section, f"docs/monitoring.md has no heading {alert}"
    assert rule["labels"] == {"severity": section[1]}
    assert section[1] in {"critical", "warning", "info"}


def test_the_page_has_no_alert_that_is_gone():
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == list(ALERTS)


def test_the_page_tells_of_every_metric_and_its_labels_and_of_no_other(served):
    told = {
        name: set(filter(None, labels.split(","))) for name, labels in re.findall(r"`(qpack_\w+)(?:{(.*?)})?`", TABLES)
    }
    for family in served.families:
        if family.name.startswith("qpack_"):
            name = family.name + "_total" if family.type == "counter" else family.name
            assert name in told, f"docs/monitoring.md doesn't tell of {name}"
            assert told.pop(name) == set().union(*(sample.labels for sample in family.samples)) - {"le"}, name
    assert told == {}


def test_the_reader_of_promql_sees_what_is_asked_for():
    expression = 'sum by (a, le) (rate(x_bucket{b="1|{", c=~"d.*"}[5m] offset 1h)) / on (a) y:z > 1e3 and up and time()'
    asked = [Selector("x_bucket", (("b", "=", "1|{"), ("c", "=~", "d.*"))), Selector("y:z", ()), Selector("up", ())]
    assert selectors(expression) == asked
    assert grouping_labels(expression) == {"a", "le"}
