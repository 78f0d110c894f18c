"""Every value of the chart changes what it says; all that it renders fits its schemas.

`pytest -m chart` runs this in an environment of its own.
"""

from collections.abc import Iterator

import helm_python
import pytest
import yaml

from tests.deploy.chart.rendering import (
    DEPLOY,
    IMAGE,
    MISSING,
    chart,
    found,
    problems,
    render,
    rendered,
    with_value,
)
from tests.deploy.chart.rows import (
    EVERYTHING,
    INIT,
    MONITOR,
    OCI,
    POD,
    PVC,
    ROWS,
    SERVER,
    Row,
    Values,
)

VERSION = "app.kubernetes.io/version"
MANAGED_BY = "app.kubernetes.io/managed-by"


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
    copier = pod["initContainers"][0]
    assert copier["volumeMounts"] == [{"name": "bundles", "mountPath": copier["command"][-1]}]
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
    threads = f"{SERVER} env ADDNORM_WORKER_THREADS valueFrom"
    assert found(render({}), threads) == {"resourceFieldRef": {"resource": "limits.cpu"}}
    assert found(render({"gpu": {"count": 1}}), threads) == MISSING
    assert found(objects, "Service spec ports 0 targetPort") == "http"
    assert found(objects, "ServiceMonitor spec endpoints 0 port") == "http"
    assert found(objects, "NetworkPolicy spec ingress 0 ports") == [{"port": "http"}]
    probes = {
        name: server[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")
    }
    paths = {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    assert probes == {name: {"path": path, "port": "http"} for name, path in paths.items()}
    # a known-answer test may take 2 s, and a server that is busy is not dead
    assert (
        server["readinessProbe"]["timeoutSeconds"] == server["startupProbe"]["timeoutSeconds"] == 4
    )
    liveness = server["livenessProbe"]
    assert liveness["timeoutSeconds"] == 5
    assert liveness["periodSeconds"] * liveness["failureThreshold"] == 60
    assert found(objects, f"{POD} topologySpreadConstraints 0 maxSkew") == 1
    assert found(objects, f"{POD} topologySpreadConstraints 0 matchLabelKeys") == [
        "pod-template-hash"
    ]
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
        ({"bundle": {"image": "a"}}, "bundle.image is set, and bundle.from is image"),
        ({"bundle": {"claim": "models"}}, "bundle.claim is set, and bundle.from is image"),
        ({"bundle": {"from": "s3"}}, "one of 'image', 'pvc', 'oci', 'init'"),
        ({"resources": {"limits": {"cpu": "500m"}}}, "resources.limits.cpu is 500m: write whole"),
        ({"gpu": {"count": 2}}, "maximum: got 2, want 1"),
        ({"gpu": {"runtimeClassName": "nvidia"}}, "and gpu.count is 0: it is of pods with a GPU"),
        ({"resources": {"limits": {"cpu": "2", "nvidia.com/gpu": 1}}},
         "resources.limits has nvidia.com/gpu: use gpu.count"),
        ({"settings": {"ADDNORM_PORT": "1"}}, "the chart itself sets: use service.port"),
        ({"settings": {"ADDNORM_MAX_TOKENS": 1}}, "got number, want string"),
        ({"settings": {"PATH": "/"}}, "invalid propertyName 'PATH'"),
        ({"autoscaling": {"min": 9}}, "autoscaling.min is 9, above autoscaling.max, 6"),
        ({"autoscaling": {"by": "cpu"}}, "one of 'none', 'hpa', 'keda'"),
        ({"autoscaling": {"min": 0}}, "minimum: got 0, want 1"),
        ({"gateway": {"enabled": True}}, "name the Gateway in gateway.name"),
        ({"maxSurge": 0}, "maxSurge and maxUnavailable are both 0"),
        ({**MONITOR, "apiKeys": {"secret": "a"}}, "name its Secret in apiKeys.metricsSecret"),
        ({"service": {"grpcPort": -1}}, "minimum: got -1, want 0"),
        ({"service": {"port": 8001, "grpcPort": 8001}},
         "service.port and service.grpcPort are both"),
        ({"replicas": "two"}, "got string, want integer"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_words(values: Values, words: str) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        rendered(values)
    assert words in str(refused.value)


OTHERS = (
    "PROVIDER",
    "GRPC_PORT",
    "API_KEYS",
    "TLS_CERT",
    "TLS_KEY",
)  # it sets some of them at times


def test_settings_that_the_chart_itself_sets_are_refused() -> None:
    values = EVERYTHING | {"bundle": {"trustedKeys": "pub"}, "gpu": {}}
    container = found(render(values), SERVER)
    ours = {entry["name"] for entry in container["env"]}
    assert len(ours) == 7
    for name in ours | {f"ADDNORM_{rest}" for rest in OTHERS}:
        with pytest.raises(helm_python.HelmError, match=f"settings has {name}, which the chart"):
            rendered({"settings": {name: "1"}})
