"""What of the chart can be checked without Helm. `pytest -m chart` renders it."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from jsonschema import Draft7Validator

from addnorm.service import VERSION
from addnorm.service.engine.registry import Models
from addnorm.service.settings import Settings
from tests.conftest import service_of, serving
from tests.support import web

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
IN_CLUSTERS = [*(CHART / "templates").glob("*"), *(ROOT / "deploy" / "kserve").glob("*")]


def wrong(values: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft7Validator(SCHEMA).iter_errors(values)]


def test_the_default_values_fit_the_schema() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert wrong(VALUES) == []


@pytest.mark.parametrize(
    "values",
    [{"imagee": "a"}, {"replicas": "two"}, {"bundle": {"from": "s3"}}, {"settings": {"PATH": "/"}}],
)
def test_the_schema_refuses(values: dict[str, Any]) -> None:
    assert wrong(values) != []


def test_the_schema_knows_the_values_that_there_are() -> None:
    """`global` is Helm's own."""
    assert SCHEMA["properties"].keys() - {"global"} == VALUES.keys()
    for name, value in VALUES.items():
        if (inner := SCHEMA["properties"][name].get("properties")) is not None:
            assert inner.keys() == value.keys(), name


def test_the_chart_is_of_this_version() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == VERSION


def test_the_settings_of_the_clusters_objects_exist() -> None:
    for path in (*IN_CLUSTERS, CHART / "values.yaml"):
        for name in re.findall(r"\bADDNORM_([A-Z_]+)", path.read_text()):
            assert name.lower() in Settings.model_fields, f"{path}: ADDNORM_{name}"


def is_below(path: str, prefixes: list[str]) -> bool:
    """Prefixes are of whole parts of a path, as a Gateway and an Ingress take them."""
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)


def test_a_gateway_shows_what_haproxy_shows() -> None:
    denied = re.findall(
        r"path,url_dec (?:-m beg )?(/\S+)", (ROOT / "deploy" / "haproxy.cfg").read_text()
    )
    assert sorted(denied) == ["/metrics", "/v2/repository"]
    with serving(service_of(Models([]))) as url:
        routes = {*web.get(f"{url}/openapi.json").json()["paths"]} - {"/", "/v2"}
    assert {path for path in routes if is_below(path, VALUES["paths"])} == {
        path for path in routes if not is_below(path, denied)
    }
    unknown = [
        prefix for prefix in VALUES["paths"] if not any(is_below(path, [prefix]) for path in routes)
    ]
    assert unknown == []


def test_probes_ask_routes_that_exist(text_client: httpx.Client) -> None:
    paths = {
        path
        for file in IN_CLUSTERS
        for path in re.findall(r'httpGet: \{path: "?([^,"]+)', file.read_text())
    }
    assert {"/livez", "/readyz"} < paths
    for path in paths:
        assert text_client.get(path.replace("{{.Name}}", "notebook")).status_code == 200, path
