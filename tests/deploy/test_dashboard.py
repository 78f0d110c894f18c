"""The dashboard: its queries name metrics that exist, its legends labels that the queries keep."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
Panel = dict[str, Any]  # as Grafana's JSON has it
BOARD = json.loads((DEPLOY / "grafana/provisioning/dashboards/addnorm.json").read_text())
PANELS: list[Panel] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
# variables of the dashboard: what Grafana puts in where all are chosen
ALL = {
    entry["name"]: entry["allValue"] for entry in BOARD["templating"]["list"] if "allValue" in entry
}
REFERENCE = set(
    re.findall(r"^- `(addnorm_\w+)`", (ROOT / "docs/reference.md").read_text(), re.MULTILINE)
)
NOT_OURS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
KNOWN = {**ALL, "__rate_interval": "20s"}  # of Grafana: four scrapes
of_panels = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])


def sent(expression: str) -> str:
    """The query as Grafana sends it. KeyError names a variable that it would not know."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: KNOWN[found[1]], expression)


@of_panels
def test_a_query_names_series_and_variables_that_exist(panel: Panel) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        query = sent(target["expr"])
        names = set(re.findall(r"\b([a-z]+_\w+|up)\{", query))
        bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
        assert bare - NOT_OURS <= REFERENCE, query


@of_panels
def test_a_legend_names_labels_that_the_query_keeps(panel: Panel) -> None:
    for target in panel["targets"]:
        wanted = set(re.findall(r"{{(\w+)}}", target["legendFormat"])) - {"le"}
        for names in re.findall(r"\bsum by \((.+?)\)", target["expr"]):
            assert wanted <= set(re.split(r", *", names)), target["expr"]


def test_the_scrape_interval_is_the_same_for_grafana_and_prometheus() -> None:
    """Else $__rate_interval is wrong, and panels are empty."""
    source = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    every = scraped["global"]["scrape_interval"]
    assert source["datasources"][0]["jsonData"]["timeInterval"] == every == "5s"


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        x, y, w, h = (panel["gridPos"][name] for name in "xywh")
        cells = {(i, j) for i in range(x, x + w) for j in range(y, y + h)}
        assert not cells & taken, panel["title"]
        assert x + w <= 24
        taken |= cells


def test_a_query_with_an_unknown_variable_is_an_error() -> None:
    with pytest.raises(KeyError, match="absent"):
        sent('up{instance=~"$absent"}')
