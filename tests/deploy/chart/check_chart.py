"""Every value of the chart changes what it says; all that it renders fits its schemas.

`make chart` runs this in an environment of its own.
"""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import helm_python
import pytest
import yaml
from tests.deploy.chart.rendering import DEPLOY, IMAGE, Object, pod_of, problems, render, rendered

BUNDLES = "registry.example.com/bundles@sha256:" + "1" * 64
POD = "Deployment spec template spec"
SERVER = f"{POD} containers 0"
MISSING = "(missing)"
Values = Mapping[str, Any]


class Row(NamedTuple):
    value: str  # its path in values.yaml
    to: Any
    where: str  # kind and path in what is rendered
    expected: Any
    given: Values = {}  # what else must be set


IMAGE_OF_BUNDLES = {"bundle": {"image": BUNDLES}}
PVC = {"bundle": {"from": "pvc", "claim": "models"}}
INIT = {"bundle": {"from": "init", "image": BUNDLES}}
OCI = {"bundle": {"from": "oci", "image": BUNDLES}}
KEYS = {"apiKeys": {"secret": "keys", "metricsSecret": "scraper"}}
KEDA = {"autoscaling": {"by": "keda"}}
HPA = {"autoscaling": {"by": "hpa"}}
MONITOR = {"metrics": {"serviceMonitor": True}}
RULES = {"metrics": {"rules": True}}
GATEWAY = {"gateway": {"enabled": True, "name": "public"}}
INGRESS = {"ingress": {"enabled": True}}
LABELS = {"release": "prometheus"}
TOLERATION = {"key": "cpu", "operator": "Exists"}
ZONE = "topology.kubernetes.io/zone"
SPREAD = f"{POD} topologySpreadConstraints 0"
RESOURCES = {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "3", "memory": "8Gi"}}
ROWS = [
    Row("image", BUNDLES, f"{SERVER} image", BUNDLES),
    Row("imagePullSecrets", ["login"], f"{POD} imagePullSecrets", [{"name": "login"}]),
    Row("bundle.from", "oci", f"{POD} volumes 1 image reference", BUNDLES, IMAGE_OF_BUNDLES),
    Row("bundle.from", "init", f"{POD} initContainers 0 image", BUNDLES, IMAGE_OF_BUNDLES),
    Row("bundle.claim", "own", f"{POD} volumes 1 persistentVolumeClaim claimName", "own", PVC),
    Row("bundle.subPath", "a/b", f"{SERVER} volumeMounts 1 subPath", "a/b", PVC),
    Row("bundle.subPath", "a/b", f"{SERVER} volumeMounts 1 subPath", "a/b", OCI),
    Row("bundle.image", IMAGE, f"{POD} volumes 1 image reference", IMAGE, OCI),
    Row("bundle.image", IMAGE, f"{POD} initContainers 0 image", IMAGE, INIT),
    Row("bundle.path", "/a", f"{POD} initContainers 0 command 2", "/a/.", INIT),
    Row("bundle.sizeLimit", "9Gi", f"{POD} volumes 1 emptyDir sizeLimit", "9Gi", INIT),
    Row("bundle.trustedKeys", "pub", f"{POD} volumes 1 configMap name", "pub"),
    Row(
        "bundle.trustedKeys",
        "pub",
        f"{SERVER} env ADDNORM_TRUSTED_KEYS value",
        "/etc/addnorm/trusted/keys.pem",
    ),
    Row("replicas", 5, "Deployment spec replicas", 5),
    Row("resources", RESOURCES, f"{SERVER} resources", RESOURCES),
    Row("resources", RESOURCES, f"{POD} initContainers 0 resources", RESOURCES, INIT),
    Row("tmpSize", "9Gi", f"{POD} volumes 0 emptyDir sizeLimit", "9Gi"),
    Row("nodeSelector", {"pool": "vnni"}, f"{POD} nodeSelector", {"pool": "vnni"}),
    Row("tolerations", [TOLERATION], f"{POD} tolerations", [TOLERATION]),
    Row("spread.topologyKey", ZONE, f"{SPREAD} topologyKey", ZONE),
    Row("spread.whenUnsatisfiable", "DoNotSchedule", f"{SPREAD} whenUnsatisfiable", "DoNotSchedule"),
    Row("timeoutS", 60, f"{SERVER} env ADDNORM_TIMEOUT_S value", "60"),
    Row("timeoutS", 60, f"{SERVER} env ADDNORM_GRACE_S value", "60"),
    Row("timeoutS", 60, f"{POD} terminationGracePeriodSeconds", 70),
    Row("timeoutS", 60, "HTTPRoute spec rules 0 timeouts request", "65s", GATEWAY),
    Row("preStopS", 9, f"{SERVER} lifecycle preStop exec command 1", "9"),
    Row("preStopS", 9, f"{POD} terminationGracePeriodSeconds", 44),
    Row("startupS", 60, f"{SERVER} startupProbe failureThreshold", 30),
    Row("startupS", 60, "Deployment spec progressDeadlineSeconds", 360),
    Row("connectionMaxAgeS", 0, f"{SERVER} env ADDNORM_CONNECTION_MAX_AGE_S value", "0"),
    Row("maxSurge", "50%", "Deployment spec strategy rollingUpdate maxSurge", "50%"),
    Row("maxUnavailable", 1, "Deployment spec strategy rollingUpdate maxUnavailable", 1),
    Row("settings", {"ADDNORM_WATCH_S": "5"}, f"{SERVER} env ADDNORM_WATCH_S value", "5"),
    Row("apiKeys.secret", "own", f"{POD} volumes 1 secret secretName", "own"),
    Row(
        "apiKeys.key",
        "a.txt",
        f"{SERVER} env ADDNORM_API_KEYS_FILE value",
        "/etc/addnorm/keys/a.txt",
        KEYS,
    ),
    Row(
        "apiKeys.metricsSecret",
        "own",
        "ServiceMonitor spec endpoints 0 authorization credentials",
        {"name": "own", "key": "token"},
        {**MONITOR, **KEYS},
    ),
    Row("service.type", "NodePort", "Service spec type", "NodePort"),
    Row("service.port", 80, "Service spec ports 0 port", 80),
    Row("service.port", 80, "HTTPRoute spec rules 0 backendRefs 0 port", 80, GATEWAY),
    Row(
        "service.port",
        80,
        "Ingress spec rules 0 http paths 0 backend service port number",
        80,
        INGRESS,
    ),
    Row("autoscaling.by", "keda", "ScaledObject spec scaleTargetRef name", "demo-addnorm"),
    Row("autoscaling.by", "hpa", "HorizontalPodAutoscaler spec scaleTargetRef kind", "Deployment"),
    Row("autoscaling.by", "hpa", "Deployment spec replicas", MISSING),
    Row("autoscaling.min", 3, "ScaledObject spec minReplicaCount", 3, KEDA),
    Row("autoscaling.min", 3, "HorizontalPodAutoscaler spec minReplicas", 3, HPA),
    Row("autoscaling.max", 9, "ScaledObject spec maxReplicaCount", 9, KEDA),
    Row("autoscaling.max", 9, "HorizontalPodAutoscaler spec maxReplicas", 9, HPA),
    Row("autoscaling.queuedTokens", 99, "ScaledObject spec triggers 0 metadata threshold", "99", KEDA),
    Row(
        "autoscaling.queuedTokens",
        99,
        "HorizontalPodAutoscaler spec metrics 0 external target averageValue",
        "99",
        HPA,
    ),
    Row("autoscaling.busyShare", 0.5, "ScaledObject spec triggers 1 metadata threshold", "0.5", KEDA),
    Row(
        "autoscaling.busyShare",
        0.5,
        "HorizontalPodAutoscaler spec metrics 1 external target averageValue",
        "0.5",
        HPA,
    ),
    Row(
        "autoscaling.scaleDownS",
        60,
        "ScaledObject spec advanced horizontalPodAutoscalerConfig behavior scaleDown"
        " stabilizationWindowSeconds",
        60,
        KEDA,
    ),
    Row(
        "autoscaling.scaleDownS",
        60,
        "HorizontalPodAutoscaler spec behavior scaleDown stabilizationWindowSeconds",
        60,
        HPA,
    ),
    Row(
        "autoscaling.prometheus",
        "http://thanos:9090",
        "ScaledObject spec triggers 1 metadata serverAddress",
        "http://thanos:9090",
        KEDA,
    ),
    Row("pdb.maxUnavailable", "30%", "PodDisruptionBudget spec maxUnavailable", "30%"),
    Row("networkPolicy.enabled", False, "NetworkPolicy", MISSING),
    Row(
        "networkPolicy.namespaces",
        ["monitoring"],
        "NetworkPolicy spec ingress 0 from 1 namespaceSelector matchLabels",
        {"kubernetes.io/metadata.name": "monitoring"},
    ),
    Row("metrics.serviceMonitor", True, "ServiceMonitor spec endpoints 0 path", "/metrics"),
    Row("metrics.rules", True, "PrometheusRule spec groups 0 name", "addnorm"),
    Row("metrics.intervalS", 15, "ServiceMonitor spec endpoints 0 interval", "15s", MONITOR),
    Row("metrics.labels", LABELS, "ServiceMonitor metadata labels release", "prometheus", MONITOR),
    Row("metrics.labels", LABELS, "PrometheusRule metadata labels release", "prometheus", RULES),
    Row("gateway.enabled", True, "HTTPRoute spec parentRefs 0 name", "own", {"gateway": {"name": "own"}}),
    Row("gateway.name", "own", "HTTPRoute spec parentRefs 0 name", "own", GATEWAY),
    Row("gateway.namespace", "edge", "HTTPRoute spec parentRefs 0 namespace", "edge", GATEWAY),
    Row("ingress.enabled", True, "Ingress spec rules 0 http paths 0 pathType", "Prefix"),
    Row("ingress.className", "nginx", "Ingress spec ingressClassName", "nginx", INGRESS),
    Row("ingress.tlsSecret", "cert", "Ingress spec tls 0 secretName", "cert", INGRESS),
    Row("ingress.annotations", {"a/b": "1"}, "Ingress metadata annotations", {"a/b": "1"}, INGRESS),
    Row("hosts", ["a.example"], "HTTPRoute spec hostnames", ["a.example"], GATEWAY),
    Row("hosts", ["a.example"], "Ingress spec rules 0 host", "a.example", INGRESS),
    Row("paths", ["/v1"], "HTTPRoute spec rules 0 matches", [{"path": {"type": "PathPrefix", "value": "/v1"}}], GATEWAY),
    Row("paths", ["/embed"], "Ingress spec rules 0 http paths 0 path", "/embed", INGRESS),
]  # fmt: skip
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
    assert {kind: problems(entry) for kind, entry in objects.items()} == dict.fromkeys(objects, [])
    assert len(objects) == 8 + (by != "none")


@pytest.mark.parametrize("release", ["demo", "addnorm", "x" * 53])
def test_names_are_short_enough_and_point_at_each_other(release: str) -> None:
    """KEDA names its HorizontalPodAutoscaler keda-hpa-NAME, of at most 63 characters."""
    objects = render(EVERYTHING, release)
    names = {entry["metadata"]["name"] for entry in objects.values()}
    assert len(names) == 1
    assert all("addnorm" in name and len(f"keda-hpa-{name}") <= 63 for name in names)
    assert found(objects, "ScaledObject spec scaleTargetRef name") in names
    assert found(objects, "HTTPRoute spec rules 0 backendRefs 0 name") in names
    selector = found(objects, "Service spec selector")
    assert selector == found(objects, "Deployment spec template metadata labels")
    assert selector == found(objects, "Deployment spec selector matchLabels")


def test_the_pod_is_hardened() -> None:
    objects = render(INIT)
    pod = found(objects, POD)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
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
    queries = [trigger["metadata"]["query"] for trigger in render(KEDA)["ScaledObject"]["spec"]["triggers"]]
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
    assert [entry for entry in report["messages"] if entry["severity"] > 1] == report["errors"] == []


def test_a_packed_chart_holds_the_rules(tmp_path: Path) -> None:
    archive = helm_python.Chart.load(DEPLOY / "chart").save(tmp_path)
    packed = helm_python.Chart.load(archive)
    rules = {file["name"]: file for file in packed.files}["rules.yml"]["data"]
    assert rules and not (tmp_path / "rules.yml").is_symlink()


def loaded(name: str) -> Object:
    found: Object = yaml.safe_load((DEPLOY / "kserve" / name).read_text())
    return found


@pytest.mark.parametrize("path", sorted((DEPLOY / "kserve").glob("*.yaml")), ids=lambda path: path.stem)
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
