"""The dashboard: its queries name metrics that exist, its legends labels that the queries keep."""

import re
from pathlib import Path

import pytest
import yaml

from tests.support.dashboard import DEPLOY, Panel, read

ROOT = Path(__file__).parents[2]
BOARD = read()
PANELS = [panel for panel in BOARD.panels if panel.kind != "row"]
REFERENCE = set(
    re.findall(r"^- `(addnorm_\w+)`", (ROOT / "docs/reference.md").read_text(), re.MULTILINE)
)
NOT_OURS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
RATE_INTERVAL = "20s"  # of Grafana: four scrapes


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_query_names_series_and_variables_that_exist(panel: Panel) -> None:
    assert panel.targets
    for target in panel.targets:
        query = BOARD.query(target["expr"], RATE_INTERVAL)
        names = set(re.findall(r"\b([a-z]+_\w+|up)\{", query))
        bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
        assert bare - NOT_OURS <= REFERENCE, query


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_legend_names_labels_that_the_query_keeps(panel: Panel) -> None:
    for target in panel.targets:
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
    for panel in BOARD.panels:
        x, y, w, h = panel.cells
        cells = {(i, j) for i in range(x, x + w) for j in range(y, y + h)}
        assert not cells & taken, panel.title
        assert x + w <= 24
        taken |= cells


def test_a_query_with_an_unknown_variable_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\$absent"):
        BOARD.query('up{instance=~"$absent"}', RATE_INTERVAL)
