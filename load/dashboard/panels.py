"""The dashboard's panels, and what Prometheus answers to their queries. Knows no picture."""

import json
import re
import urllib.parse
import urllib.request
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

STEP_S = 2.0  # between points
LABEL_VALUES = re.compile(r"label_values\((.+), *(\w+)\)")
Series = dict[str, list[tuple[float, float]]]  # legend -> time, value


@dataclass(frozen=True)
class Panel:
    """As the dashboard's JSON has it."""

    raw: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.raw["type"])

    @property
    def title(self) -> str:
        return str(self.raw["title"])

    @property
    def cells(self) -> tuple[int, int, int, int]:
        """x, y, width and height in Grafana's grid, which is 24 wide."""
        place = self.raw["gridPos"]
        return place["x"], place["y"], place["w"], place["h"]

    @property
    def targets(self) -> list[dict[str, str]]:
        """Its queries."""
        return list(self.raw.get("targets", []))

    @property
    def defaults(self) -> dict[str, Any]:
        found: dict[str, Any] = self.raw.get("fieldConfig", {}).get("defaults", {})
        return found

    @property
    def unit(self) -> str:
        if self.kind == "heatmap":
            return str(self.raw["options"]["yAxis"]["unit"])
        return str(self.defaults.get("unit", "none"))

    def overrides(self, legend: str) -> dict[str, Any]:
        """Property -> value, of the series of this name."""
        return {
            each["id"]: each["value"]
            for override in self.raw["fieldConfig"]["overrides"]
            if override["matcher"] == {"id": "byName", "options": legend}
            for each in override["properties"]
        }


@dataclass(frozen=True)
class Dashboard:
    panels: list[Panel]
    variables: dict[str, str]  # name -> what Grafana puts in where all are chosen
    choices: dict[str, str]  # name -> the query for what one may choose

    def query(self, expression: str, rate_interval: str) -> str:
        """As Grafana sends it. ValueError if a variable is left that it would not know."""
        known = {**self.variables, "__rate_interval": rate_interval}
        found = re.sub(r"\$\{?(\w+)\}?", lambda match: known.get(match[1], match[0]), expression)
        if "$" in found:
            raise ValueError(f"no such variable of Grafana or the dashboard: {found}")
        return found


def read(path: Path) -> Dashboard:
    raw = json.loads(path.read_text())
    asked = [each for each in raw["templating"]["list"] if each["type"] == "query"]
    variables = {each["name"]: each["allValue"] for each in asked}
    choices = {each["name"]: each["query"]["query"] for each in asked}
    return Dashboard([Panel(panel) for panel in raw["panels"]], variables, choices)


def rate_interval(scrape_s: float, step_s: float = STEP_S) -> str:
    """Grafana's $__rate_interval: four scrapes, or a step and a scrape."""
    return f"{max(4 * scrape_s, step_s + scrape_s):g}s"


@dataclass(frozen=True)
class Prometheus:
    """One that runs, and the time that is asked for."""

    url: str
    start: float
    end: float

    def series(self, query: str, form: str) -> Series:
        """By legend, of this form. Points that are not a number are left out."""
        found: Series = {}
        for result in self._range(query):
            values = ((time, float(value)) for time, value in result["values"])
            if points := [point for point in values if not isnan(point[1])]:
                found[_legend(form, result["metric"])] = points
        return found

    def label_values(self, query: str) -> list[str]:
        """Of a variable's query: label_values(selector, label)."""
        selector, label = LABEL_VALUES.fullmatch(query).groups()  # type: ignore[union-attr]
        fields = {"match[]": selector, "start": self.start, "end": self.end}
        return list(self.ask(f"label/{label}/values", **fields))

    def labels(self, query: str) -> list[dict[str, str]]:
        """Of each series now: what a table shows."""
        answer = self.ask("query", query=query, time=self.end)
        return [result["metric"] for result in answer["result"]]

    def _range(self, query: str) -> list[dict[str, Any]]:
        times = {"start": self.start, "end": self.end, "step": STEP_S}
        answer = self.ask("query_range", query=query, **times)
        found: list[dict[str, Any]] = answer["result"]
        return found

    def ask(self, route: str, **fields: Any) -> Any:
        """HTTPError if the query is wrong."""
        url = f"{self.url}/api/v1/{route}?{urllib.parse.urlencode(fields)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]


def _legend(form: str, labels: dict[str, str]) -> str:
    """Grafana's legend: labels where the form names them."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), form)
