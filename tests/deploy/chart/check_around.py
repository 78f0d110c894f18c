"""What is around the chart: alert rules, the page's examples, and KServe's objects.

`pytest -m chart` runs this in an environment of its own.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from tests.deploy.chart.rendering import (
    DEPLOY,
    IMAGE,
    Object,
    chart,
    found,
    pod_of,
    problems,
    render,
    with_value,
)
from tests.deploy.chart.rows import HPA, KEDA, RULES

LABELS_OF = 'namespace="models",service="demo-addnorm"'
MONITORING = "addnorm/templates/monitoring.yaml"


def test_the_alert_rules_are_those_of_the_one_file() -> None:
    source = yaml.safe_load((DEPLOY / "rules.yml").read_text())
    objects = render({"metrics": {"serviceMonitor": True, "rules": True}})
    assert found(objects, "PrometheusRule spec") == source
    label = found(objects, "ServiceMonitor spec jobLabel")
    assert found(objects, "Service metadata labels")[label] == "addnorm"
    assert 'job="addnorm"' in (DEPLOY / "rules.yml").read_text()


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool: Debian's prometheus")
def test_promtool_accepts_the_rendered_rules(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(render(RULES)["PrometheusRule"]["spec"]))
    subprocess.run(["promtool", "check", "rules", file], check=True)


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool: Debian's prometheus")
def test_promtool_accepts_the_queries_of_the_autoscalers(tmp_path: Path) -> None:
    """The queries are checked as recording rules, since promtool reads no queries alone."""
    queries = [
        trigger["metadata"]["query"] for trigger in render(KEDA)["ScaledObject"]["spec"]["triggers"]
    ]
    for name in ("embeddings", "reranker"):
        metrics = loaded(f"{name}.yaml")["spec"]["predictor"]["autoScaling"]["metrics"]
        queries += [metric["external"]["metric"]["query"] for metric in metrics]
    rules = [{"record": f"query:{n}", "expr": query} for n, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    subprocess.run(["promtool", "check", "rules", file], check=True)
    assert len(queries) == 6


def test_helm_finds_nothing_to_mend() -> None:
    report = helm_python.lint(DEPLOY / "chart", {"image": IMAGE}, strict=True)
    assert (
        [entry for entry in report["messages"] if entry["severity"] > 1] == report["errors"] == []
    )


def test_a_packed_chart_holds_the_rules(tmp_path: Path) -> None:
    packed = helm_python.Chart.load(chart().save(tmp_path))
    objects = yaml.safe_load_all(packed.render({"image": IMAGE, **RULES})[MONITORING])
    assert [entry["spec"] for entry in objects if entry] == [
        render(RULES)["PrometheusRule"]["spec"]
    ]


def of_the_page(first_line: str) -> Any:
    """The YAML block of docs/scaling.md that begins so."""
    page = (DEPLOY.parent / "docs" / "scaling.md").read_text()
    (block,) = re.findall(rf"```yaml\n# {first_line}\n(.+?)```", page, re.DOTALL)
    return yaml.safe_load(block)


def test_the_pages_values_are_accepted() -> None:
    objects = render(of_the_page("values.yaml"))
    assert [what for entry in objects.values() for what in problems(entry)] == []
    assert {"ScaledObject", "ServiceMonitor", "PrometheusRule", "HTTPRoute"} < objects.keys()


def test_the_pages_adapter_offers_what_the_autoscaler_asks_for() -> None:
    rules = of_the_page("values of prometheus-adapter")["rules"]["external"]
    offered = [rule.get("name", {}).get("as", rule["seriesQuery"]) for rule in rules]
    metrics = found(render(HPA), "HorizontalPodAutoscaler spec metrics")
    assert offered == [metric["external"]["metric"]["name"] for metric in metrics]
    queries = [rule["metricsQuery"].replace("<<.LabelMatchers>>", LABELS_OF) for rule in rules]
    triggers = found(render(KEDA), "ScaledObject spec triggers")
    assert queries == [trigger["metadata"]["query"] for trigger in triggers]
    targets = [metric["external"]["target"]["type"] for metric in metrics]
    assert targets == [trigger["metricType"] for trigger in triggers] == ["AverageValue"] * 2


def loaded(name: str) -> Object:
    document: Object = yaml.safe_load((DEPLOY / "kserve" / name).read_text())
    return document


@pytest.mark.parametrize(
    "path", sorted((DEPLOY / "kserve").glob("*.yaml")), ids=lambda path: path.stem
)
def test_kserves_objects_fit_their_schemas(path: Path) -> None:
    assert problems(loaded(path.name)) == []


def test_the_containers_of_the_runtime_fit_those_of_kubernetes() -> None:
    assert problems(pod_of(loaded("runtime.yaml"))) == []


@pytest.mark.parametrize(
    ("name", "path", "to"),
    [
        ("embeddings.yaml", "spec.predictor.modell", {}),
        ("embeddings.yaml", "spec.predictor.model.storageUrl", "pvc://a"),
        ("embeddings.yaml", "spec.predictor.maxReplicas", "six"),
        ("runtime.yaml", "spec.protocolVersion", "v2"),
        ("podmonitor.yaml", "spec.selectors", {}),
    ],
)
def test_a_field_that_does_not_exist_is_found(name: str, path: str, to: Any) -> None:
    assert problems(with_value(loaded(name), path, to)) != []
