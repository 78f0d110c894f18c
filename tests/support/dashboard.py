"""The Grafana dashboard as its JSON has it: panels, queries, variables."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana/provisioning/dashboards/addnorm.json"


@dataclass(frozen=True)
class Panel:
    title: str
    kind: str
    cells: tuple[int, int, int, int]  # x, y, width and height in Grafana's grid, which is 24 wide
    targets: list[dict[str, str]]  # its queries


@dataclass(frozen=True)
class Dashboard:
    panels: list[Panel]
    variables: dict[str, str]  # name -> what Grafana puts in where all are chosen

    def query(self, expression: str, rate_interval: str) -> str:
        """The query as Grafana sends it. ValueError if a variable is left that it would not
        know."""
        known = {**self.variables, "__rate_interval": rate_interval}
        found = re.sub(r"\$\{?(\w+)\}?", lambda match: known.get(match[1], match[0]), expression)
        if "$" in found:
            raise ValueError(f"no such variable of Grafana or the dashboard: {found}")
        return found


def read(path: Path = DASHBOARD) -> Dashboard:
    raw = json.loads(path.read_text())
    asked = [each for each in raw["templating"]["list"] if each["type"] == "query"]
    return Dashboard(
        [_panel(panel) for panel in raw["panels"]],
        {each["name"]: each["allValue"] for each in asked},
    )


def _panel(raw: dict[str, Any]) -> Panel:
    place = raw["gridPos"]
    cells = place["x"], place["y"], place["w"], place["h"]
    return Panel(raw["title"], raw["type"], cells, list(raw.get("targets", [])))
