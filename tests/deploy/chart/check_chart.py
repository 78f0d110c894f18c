"""Every value of the chart changes what it says; all that it renders fits its schemas.

`make chart` runs this in an environment of its own.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
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
    pod_of,
    problems,
    render,
    rendered,
)
from tests.deploy.chart.rows import (
    GATEWAY,
    HPA,
    INGRESS,
    INIT,
    KEDA,
    KEYS,
    LABELS,
    MISSING,
    MONITOR,
    OCI,
    POD,
    PVC,
    ROWS,
    RULES,
    SERVER,
    Row,
    Values,
)

LABELS_OF = 'namespace="models",service="demo-addnorm"'
VERSION = "app.kubernetes.io/version"
MANAGED_BY = "app.kubernetes.io/managed-by"
MONITORING = "addnorm/templates/monitoring.yaml"
EVERYTHING = {**KEDA, **KEYS, **GATEWAY, **INGRESS, **PVC, "hosts": ["a.example"]}
EVERYTHING |= {"metrics": {"serviceMonitor": True, "rules": True, "labels": LABELS}}


def with_value(values: Values, path: str, to: Any) -> dict[str, Any]:
    name, _, rest = path.partition(".")
    inner = with_value(values.get(name, {}), rest, to) if rest else to
    return {**values, name: inner}


def found(objects: Mapping[str, Object], where: str) -> Any:
    """What stands there. A list of environment variables is walked by their names."""
    value: Any = objects
    for step in where.split():
        if isinstance(value, list) and not step.isdigit():
            value = {entry["name"]: entry for entry in value}
        try:
            value = value[int(step) if isinstance(value, list) else step]
        except (KeyError, IndexError):
            return MISSING
    return value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.value}: {row.where}")
def test_a_value_changes_what_it_says(row: Row) -> None:
    objects = render(with_value(row.given, row.value, row.to))
    assert found(objects, row.where) == row.expected
    assert found(render(row.given), row.where) != row.expected, "without it, it is the same"
    assert [what for entry in objects.values() for what in problems(entry)] == []


def leaves(values: Values, path: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and value and name != "resources":
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def test_every_value_has_a_row() -> None:
    values = yaml.safe_load((DEPLOY / "chart" / "values.yaml").read_text())
    assert set(leaves(values)) == {row.value for row in ROWS}


@pytest.mark.parametrize("source", [{}, PVC, OCI, INIT], ids=["image", "pvc", "oci", "init"])
@pytest.mark.parametrize("by", ["none", "keda", "hpa"])
def test_all_that_is_rendered_fits_its_schema(source: Values, by: str) -> None:
    objects = render({**EVERYTHING, **source, "autoscaling": {"by": by}})
    assert [what for entry in objects.values() for what in problems(entry)] == []
    assert len(objects) == 8 + (by != "none")


@pytest.mark.parametrize("by", ["keda", "hpa"])
@pytest.mark.parametrize("release", ["demo", "addnorm", "x" * 53])
def test_names_are_short_enough_and_point_at_each_other(release: str, by: str) -> None:
    """KEDA names its HorizontalPodAutoscaler keda-hpa-NAME, of at most 63 characters."""
    objects = render({**EVERYTHING, "autoscaling": {"by": by}}, release)
    names = {entry["metadata"]["name"] for entry in objects.values()}
    assert len(names) == 1
    assert all("addnorm" in name and len(f"keda-hpa-{name}") <= 63 for name in names)
    scaler = "ScaledObject" if by == "keda" else "HorizontalPodAutoscaler"
    assert found(objects, f"{scaler} spec scaleTargetRef name") in names
    assert found(objects, "HTTPRoute spec rules 0 backendRefs 0 name") in names
    assert {entry["metadata"]["namespace"] for entry in objects.values()} == {"models"}
    selector = found(objects, "Service spec selector")
    assert selector["app.kubernetes.io/instance"] == release
    assert all(selector.items() < entry["metadata"]["labels"].items() for entry in objects.values())
    for name, expected in ((MANAGED_BY, "Helm"), (VERSION, chart().metadata["appVersion"])):
        assert {entry["metadata"]["labels"].get(name) for entry in objects.values()} == {expected}
    assert selector == found(objects, "Deployment spec template metadata labels")
    assert selector == found(objects, "Deployment spec selector matchLabels")


def test_the_pod_is_hardened() -> None:
    objects = render(INIT)
    pod = found(objects, POD)
    users = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 10001)
    seccomp = {"seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["securityContext"] == {"runAsNonRoot": True, **users, **seccomp}
    assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
    for container in (*pod["containers"], *pod["initContainers"]):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["tmp"]["mountPath"] == "/tmp"
    assert mounts["bundles"]["readOnly"] is True
    policy = found(objects, "NetworkPolicy spec")
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy  # of no rule: nothing is allowed


@pytest.mark.parametrize(
    "where",
    [
        "Deployment spec selector matchLabels",
        f"{POD} topologySpreadConstraints 0 labelSelector matchLabels",
        "PodDisruptionBudget spec selector matchLabels",
        "NetworkPolicy spec podSelector matchLabels",
        "ServiceMonitor spec selector matchLabels",
    ],
)
def test_all_select_the_pods(where: str) -> None:
    objects = render(EVERYTHING)
    assert found(objects, where) == found(objects, "Service spec selector")


def test_ports_and_probes_are_the_servers() -> None:
    objects = render(EVERYTHING)
    server = found(objects, SERVER)
    assert server["ports"] == [{"name": "http", "containerPort": 8000}]
    assert found(objects, f"{SERVER} env ADDNORM_PORT value") == "8000"
    threads = found(objects, f"{SERVER} env ADDNORM_WORKER_THREADS valueFrom")
    assert threads == {"resourceFieldRef": {"resource": "limits.cpu"}}
    assert found(objects, "Service spec ports 0 targetPort") == "http"
    assert found(objects, "ServiceMonitor spec endpoints 0 port") == "http"
    assert found(objects, "NetworkPolicy spec ingress 0 ports") == [{"port": "http"}]
    asked = {
        name: server[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")
    }
    paths = {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    assert asked == {name: {"path": path, "port": "http"} for name, path in paths.items()}
    # a known-answer test may take 2 s, and a server that is busy is not dead
    assert (
        server["readinessProbe"]["timeoutSeconds"] == server["startupProbe"]["timeoutSeconds"] == 4
    )
    liveness = server["livenessProbe"]
    assert liveness["timeoutSeconds"] == 5
    assert liveness["periodSeconds"] * liveness["failureThreshold"] == 60
    mounted = found(objects, f"{SERVER} volumeMounts bundles")
    assert mounted == {"name": "bundles", "mountPath": "/bundles", "readOnly": True}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"image": ""}, 'image is "": name an image by its digest'),
        ({"image": "addnorm:1"}, 'image is "addnorm:1": name an image by its digest'),
        ({"imagee": IMAGE}, "additional properties 'imagee' not allowed"),
        ({"bundle": {"from": "pvc"}}, "name the volume claim in bundle.claim"),
        ({"bundle": {"from": "oci"}}, 'bundle.image is "": name an image by its digest'),
        ({"bundle": {"from": "init", "image": "a:1"}}, 'bundle.image is "a:1"'),
        ({"bundle": {"from": "s3"}}, "one of 'image', 'pvc', 'oci', 'init'"),
        ({"resources": {"limits": {"cpu": "500m"}}}, "resources.limits.cpu is 500m: write whole"),
        ({"settings": {"ADDNORM_PORT": "1"}}, "the chart itself sets: use service.port"),
        ({"settings": {"ADDNORM_MAX_TOKENS": 1}}, "got number, want string"),
        ({"settings": {"PATH": "/"}}, "invalid propertyName 'PATH'"),
        ({"autoscaling": {"min": 9}}, "autoscaling.min is 9, above autoscaling.max, 6"),
        ({"autoscaling": {"by": "cpu"}}, "one of 'none', 'hpa', 'keda'"),
        ({"autoscaling": {"min": 0}}, "minimum: got 0, want 1"),
        ({"gateway": {"enabled": True}}, "name the Gateway in gateway.name"),
        ({"maxSurge": 0}, "maxSurge and maxUnavailable are both 0"),
        ({**MONITOR, "apiKeys": {"secret": "a"}}, "name its Secret in apiKeys.metricsSecret"),
        ({"replicas": "two"}, "got string, want integer"),
    ],
)
def test_a_wrong_value_is_refused_with_words(values: Values, words: str) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        rendered(values)
    assert words in str(refused.value)


def test_settings_that_the_chart_itself_sets_are_refused() -> None:
    container = found(render(EVERYTHING | {"bundle": {"trustedKeys": "pub"}}), SERVER)
    ours = {entry["name"] for entry in container["env"]}
    assert len(ours) == 7
    for name in ours | {f"ADDNORM_{rest}" for rest in ("HOST", "API_KEYS", "TLS_CERT", "TLS_KEY")}:
        with pytest.raises(helm_python.HelmError, match=f"settings has {name}, which the chart"):
            rendered({"settings": {name: "1"}})


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
    """As recording rules, since promtool reads no queries alone."""
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
    found: Object = yaml.safe_load((DEPLOY / "kserve" / name).read_text())
    return found


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
