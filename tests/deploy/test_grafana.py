"""The dashboard for Grafana: imports anywhere, asks for series that exist, and nothing lies on top of anything."""

import json
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "qpack.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]
VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
# What Grafana puts for its variables before Prometheus sees the expression.
PUT = {"$__rate_interval": "5m", "$instance": ".*", "$model": ".*"}


def put(expression: str) -> str:
    for variable, text in PUT.items():
        expression = expression.replace(variable, text)
    assert "$" not in expression, f"{expression} has a variable that the dashboard doesn't"
    return expression


def expressions() -> list[str]:
    queries = [
        re.fullmatch(r"label_values\((.+), \w+\)", one["query"]["query"])
        for one in VARIABLES.values()
        if one["type"] == "query"
    ]
    asked = [match[1] for match in queries if match]
    asked += [target["expr"] for panel in GRAPHS for target in panel["targets"]]
    return [put(text) for text in asked + [one["expr"] for one in DASHBOARD["annotations"]["list"]]]


def test_it_imports_anywhere():
    """Fixed name, no number of an instance's, no data source but the one that is chosen."""
    assert DASHBOARD["uid"] == "qpack"
    assert DASHBOARD["schemaVersion"] >= 41  # Grafana 12
    assert not {"id", "gnetId", "iteration", "__inputs", "__requires"} & set(DASHBOARD)
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert set(re.findall(r'"type": "prometheus", "uid": "(.*?)"', json.dumps(DASHBOARD))) == {"${datasource}"}
    owners = [*GRAPHS, *(target for panel in GRAPHS for target in panel["targets"])]
    assert all("datasource" in owner for owner in owners)


def test_models_choose_instances_and_both_may_be_several():
    assert list(VARIABLES) == ["datasource", "model", "instance"]
    assert "$model" in VARIABLES["instance"]["query"]["query"]
    assert "allValue" not in VARIABLES["instance"]  # all of the chosen models', not all there are
    assert all(VARIABLES[name]["multi"] and VARIABLES[name]["includeAll"] for name in ("model", "instance"))


def test_rows_are_traffic_latency_engine_host_and_gpu():
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == [
        "Traffic", "Latency", "Engine", "Host and GPU",
    ]  # fmt: skip


def test_panels_have_ids_and_places_of_their_own():
    identities = [panel["id"] for panel in PANELS]
    assert len(set(identities)) == len(identities)
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert min(place["w"], place["h"]) > 0
    for one, other in combinations(PANELS, 2):
        first, second = one["gridPos"], other["gridPos"]
        beside = first["x"] + first["w"] <= second["x"] or second["x"] + second["w"] <= first["x"]
        apart = first["y"] + first["h"] <= second["y"] or second["y"] + second["h"] <= first["y"]
        assert beside or apart, f"{one['title']} lies on {other['title']}"


@pytest.mark.parametrize("panel", GRAPHS, ids=lambda panel: panel["title"])
def test_each_panel_says_what_it_shows_and_in_which_unit(panel):
    assert panel["type"] in {"stat", "timeseries", "heatmap"}
    assert panel["title"]
    assert panel["description"].endswith(".")
    references = [target["refId"] for target in panel["targets"]]
    assert references
    assert len(set(references)) == len(references)
    unit = panel["options"]["yAxis"] if panel["type"] == "heatmap" else panel["fieldConfig"]["defaults"]
    assert unit["unit"]
    if len(panel["targets"]) > 1:
        assert len({target["legendFormat"] for target in panel["targets"]}) == len(panel["targets"])
    assert all("$instance" in target["expr"] for target in panel["targets"])


def test_each_query_asks_for_series_that_a_server_has(served):
    for expression in expressions():
        served.require(expression)


def test_legends_name_labels_that_the_query_leaves():
    for panel in GRAPHS:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                grouped = re.search(r"\bby \(([^)]*)\)", target["expr"])
                assert not grouped or label in grouped[1].replace(" ", "").split(","), panel["title"]


def test_promtool_takes_each_query(promtool: Callable[..., str], tmp_path: Path):
    rules = [{"record": f"query:{index}", "expr": text} for index, text in enumerate(expressions())]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), encoding="utf-8")
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(file))
