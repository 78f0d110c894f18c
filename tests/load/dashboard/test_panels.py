"""The dashboard: its queries, units and kinds are known, and answers are drawn as they came."""

import json
import re
from pathlib import Path

import pytest
import yaml

from addnorm.load.dashboard.__main__ import DASHBOARD, DEPLOY
from addnorm.load.dashboard.drawing import DRAWN, NAMED, Answer, draw
from addnorm.load.dashboard.panels import Panel, Prometheus, rate_interval, read
from addnorm.load.dashboard.units import shown
from tests.support.fake_server import fake_server

ROOT = Path(__file__).parents[3]
BOARD = read(ROOT / DASHBOARD)
PANELS = [panel for panel in BOARD.panels if panel.kind != "row"]
REFERENCE = dict(
    re.findall(
        r"^\| `((?:addnorm|process)_\w+)`.*? \| (.+?) \|",
        (ROOT / "docs/reference.md").read_text(),
        re.MULTILINE,
    )
)
NOT_OURS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_is_one_that_can_be_drawn(panel: Panel) -> None:
    """Its kind, unit, colours and variables are known, and its queries name series that exist."""
    assert panel.kind in DRAWN
    shown(1.0, panel.unit)
    for steps in panel.defaults.get("thresholds", {}).get("steps", []):
        assert steps["color"] in NAMED
    for override in panel.raw["fieldConfig"]["overrides"]:
        colour = panel.overrides(override["matcher"]["options"]).get("color", {})
        assert colour.get("fixedColor", "red") in NAMED
    assert panel.targets
    for target in panel.targets:
        query = BOARD.query(target["expr"], "20s")
        names = set(re.findall(r"\b([a-z]+_\w+|up)\{", query))
        bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
        assert bare - NOT_OURS <= set(REFERENCE), query


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_legend_names_labels_that_the_query_keeps(panel: Panel) -> None:
    for target in panel.targets:
        wanted = set(re.findall(r"{{(\w+)}}", target["legendFormat"])) - {"le"}
        for names in re.findall(r"\bsum by \((.+?)\)", target["expr"]):
            assert wanted <= set(re.split(r", *", names)), target["expr"]


def test_the_scrape_interval_is_the_same_for_grafana_and_prometheus() -> None:
    """Else $__rate_interval is wrong, and panels are empty."""
    source = yaml.safe_load(
        (ROOT / DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    scraped = yaml.safe_load((ROOT / DEPLOY / "prometheus.yml").read_text())
    every = scraped["global"]["scrape_interval"]
    assert source["datasources"][0]["jsonData"]["timeInterval"] == every == "5s"
    assert rate_interval(5) == "20s"


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
        BOARD.query('up{instance=~"$absent"}', "20s")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0042, "s", "4.2 ms"),
        (0.0, "s", "0 s"),
        (90.0, "s", "90 s"),
        (0.701, "percentunit", "70.1%"),
        (3 * 2**20, "bytes", "3 MiB"),
        (65_536.0, "short", "65.5 K"),
        (12.0, "reqps", "12 req/s"),
        (1234.0, "suffix: tokens/s", "1,234 tokens/s"),
    ],
)
def test_values_are_shown_in_their_unit(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_an_unknown_unit_is_an_error() -> None:
    with pytest.raises(ValueError, match="'second' is not among"):
        shown(1.0, "second")


def test_answers_of_prometheus_become_series_by_legend() -> None:
    """Without points that are no number; without series that have no other."""
    results = [
        {"metric": {"stage": "infer"}, "values": [[1, "0.5"], [3, "NaN"], [5, "1.5"]]},
        {"metric": {"stage": "queue"}, "values": [[1, "NaN"]]},
    ]
    answer = json.dumps({"data": {"result": results}}).encode()
    with fake_server(lambda _: (200, answer)) as server:
        source = Prometheus(f"http://{server.host}:{server.port}", 0.0, 9.0)
        assert source.series("up", "{{stage}}!") == {"infer!": [(1, 0.5), (5, 1.5)]}


def test_all_kinds_of_panels_are_drawn(tmp_path: Path) -> None:
    by_kind = {panel.kind: panel for panel in BOARD.panels}
    line = [(1_700_000_000.0 + 2 * n, float(n)) for n in range(20)]
    rows = [{"model": "a", "instance": "b", "fingerprint": "0" * 32}]
    answers = [
        Answer(panel, {} if kind == "table" else {"0.1": line}, rows * (kind == "table"), [])
        for kind, panel in by_kind.items()
    ]
    draw(tmp_path / "dashboard.png", answers)
    assert (tmp_path / "dashboard.png").stat().st_size > 5_000
