"""Each value of the chart, and where in what is rendered it can be seen."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.deploy.chart.rendering import IMAGE, MISSING

BUNDLES = "registry.example.com/bundles@sha256:" + "1" * 64
POD = "Deployment spec template spec"
SERVER = f"{POD} containers 0"
AUTOSCALER = "HorizontalPodAutoscaler spec"
SCALED = "ScaledObject spec"
PARENT = "HTTPRoute spec parentRefs 0 name"
RULE = "HTTPRoute spec rules 0"
Values = Mapping[str, Any]


NOTHING: Values = MappingProxyType({})


class Row(NamedTuple):
    value: str  # its path in values.yaml
    to: Any
    where: str  # kind and path in what is rendered
    expected: Any
    given: Values = NOTHING  # what else must be set


PVC = {"bundle": {"from": "pvc", "claim": "models"}}
INIT = {"bundle": {"from": "init", "image": BUNDLES}}
OCI = {"bundle": {"from": "oci", "image": BUNDLES}}
KEYS = {"apiKeys": {"secret": "keys", "metricsSecret": "scraper"}}
GPU = {"gpu": {"count": 1}}
KEDA = {"autoscaling": {"by": "keda"}}
HPA = {"autoscaling": {"by": "hpa"}}
MONITOR = {"metrics": {"serviceMonitor": True}}
RULES = {"metrics": {"rules": True}}
OWN_GATEWAY = {"gateway": {"name": "own"}}
GATEWAY = {"gateway": {"enabled": True, "name": "public"}}
INGRESS = {"ingress": {"enabled": True}}
MATCH = {"path": {"type": "PathPrefix", "value": "/v1"}}
LABELS = {"release": "prometheus"}
TOLERATION = {"key": "cpu", "operator": "Exists"}
STRICT = "DoNotSchedule"
ZONE = "topology.kubernetes.io/zone"
SPREAD = f"{POD} topologySpreadConstraints 0"
RESOURCES = {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "3", "memory": "8Gi"}}
ROWS = [
    Row("image", BUNDLES, f"{SERVER} image", BUNDLES),
    Row("imagePullSecrets", ["login"], f"{POD} imagePullSecrets", [{"name": "login"}]),
    Row("bundle.from", "oci", f"{POD} volumes 1 image reference", BUNDLES, INIT),
    Row("bundle.from", "init", f"{POD} initContainers 0 image", BUNDLES, OCI),
    Row("bundle.claim", "own", f"{POD} volumes 1 persistentVolumeClaim claimName", "own", PVC),
    Row("bundle.subPath", "a/b", f"{SERVER} volumeMounts 1 subPath", "a/b", PVC),
    Row("bundle.subPath", "a/b", f"{SERVER} volumeMounts 1 subPath", "a/b", OCI),
    Row("bundle.image", IMAGE, f"{POD} volumes 1 image reference", IMAGE, OCI),
    Row("bundle.image", IMAGE, f"{POD} initContainers 0 image", IMAGE, INIT),
    Row("bundle.path", "/a", f"{POD} initContainers 0 command 2", "/a/.", INIT),
    Row("bundle.sizeLimit", "9Gi", f"{POD} volumes 1 emptyDir sizeLimit", "9Gi", INIT),
    Row("bundle.trustedKeys", "pub", f"{POD} volumes 1 configMap name", "pub"),
    Row("bundle.trustedKeys", "pub", f"{SERVER} env ADDNORM_TRUSTED_KEYS value",
        "/etc/addnorm/trusted/keys.pem"),
    Row("replicas", 5, "Deployment spec replicas", 5),
    Row("resources", RESOURCES, f"{SERVER} resources", RESOURCES),
    Row("resources", RESOURCES, f"{POD} initContainers 0 resources", RESOURCES, INIT),
    Row("gpu.count", 1, f"{SERVER} resources limits nvidia.com/gpu", 1),
    Row("gpu.count", 1, f"{SERVER} env ADDNORM_PROVIDER value", "cuda"),
    Row("gpu.runtimeClassName", "nvidia", f"{POD} runtimeClassName", "nvidia", GPU),
    Row("tmpSize", "9Gi", f"{POD} volumes 0 emptyDir sizeLimit", "9Gi"),
    Row("nodeSelector", {"pool": "vnni"}, f"{POD} nodeSelector", {"pool": "vnni"}),
    Row("tolerations", [TOLERATION], f"{POD} tolerations", [TOLERATION]),
    Row("spread.topologyKey", ZONE, f"{SPREAD} topologyKey", ZONE),
    Row("spread.whenUnsatisfiable", STRICT, f"{SPREAD} whenUnsatisfiable", STRICT),
    Row("timeoutS", 60, f"{SERVER} env ADDNORM_TIMEOUT_S value", "60"),
    Row("timeoutS", 60, f"{SERVER} env ADDNORM_GRACE_S value", "60"),
    Row("timeoutS", 60, f"{POD} terminationGracePeriodSeconds", 70),
    Row("timeoutS", 900, f"{RULE} timeouts request", "920s", GATEWAY),
    Row("bulkTimeoutS", 900, f"{RULE} timeouts request", "920s", GATEWAY),
    Row("bulkTimeoutS", 60, f"{SERVER} env ADDNORM_BULK_TIMEOUT_S value", "60"),
    Row("preStopS", 9, f"{SERVER} lifecycle preStop exec command 1", "9"),
    Row("preStopS", 9, f"{POD} terminationGracePeriodSeconds", 44),
    Row("startupS", 60, f"{SERVER} startupProbe failureThreshold", 30),
    Row("startupS", 60, "Deployment spec progressDeadlineSeconds", 360),
    Row("maxSurge", "50%", "Deployment spec strategy rollingUpdate maxSurge", "50%"),
    Row("maxUnavailable", 1, "Deployment spec strategy rollingUpdate maxUnavailable", 1),
    Row("settings", {"ADDNORM_WATCH_S": "5"}, f"{SERVER} env ADDNORM_WATCH_S value", "5"),
    Row("apiKeys.secret", "own", f"{POD} volumes 1 secret secretName", "own"),
    Row("apiKeys.key", "a.txt", f"{SERVER} env ADDNORM_API_KEYS_FILE value",
        "/etc/addnorm/keys/a.txt", KEYS),
    Row("apiKeys.metricsSecret", "own", "ServiceMonitor spec endpoints 0 authorization credentials",
        {"name": "own", "key": "token"}, {**MONITOR, **KEYS}),
    Row("service.type", "NodePort", "Service spec type", "NodePort"),
    Row("service.port", 80, "Service spec ports 0 port", 80),
    Row("service.grpcPort", 90, "Service spec ports 1 port", 90),
    Row("service.grpcPort", 90, "Service spec ports 1 targetPort", "grpc"),
    Row("service.grpcPort", 90, f"{SERVER} ports grpc containerPort", 8001),
    Row("service.grpcPort", 90, f"{SERVER} env ADDNORM_GRPC_PORT value", "8001"),
    Row("service.grpcPort", 90, "NetworkPolicy spec ingress 0 ports 1", {"port": "grpc"}),
    Row("service.port", 80, f"{RULE} backendRefs 0 port", 80, GATEWAY),
    Row("service.port", 80, "Ingress spec rules 0 http paths 0 backend service port number", 80,
        INGRESS),
    Row("autoscaling.by", "keda", f"{SCALED} scaleTargetRef name", "demo-addnorm"),
    Row("autoscaling.by", "hpa", f"{AUTOSCALER} scaleTargetRef kind", "Deployment"),
    Row("autoscaling.by", "hpa", "Deployment spec replicas", MISSING),
    Row("autoscaling.min", 3, f"{SCALED} minReplicaCount", 3, KEDA),
    Row("autoscaling.min", 3, f"{AUTOSCALER} minReplicas", 3, HPA),
    Row("autoscaling.max", 9, f"{SCALED} maxReplicaCount", 9, KEDA),
    Row("autoscaling.max", 9, f"{AUTOSCALER} maxReplicas", 9, HPA),
    Row("autoscaling.queuedTokens", 99, f"{SCALED} triggers 0 metadata threshold", "99", KEDA),
    Row("autoscaling.queuedTokens", 99, f"{AUTOSCALER} metrics 0 external target averageValue",
        "99", HPA),
    Row("autoscaling.busyShare", 0.5, f"{SCALED} triggers 1 metadata threshold", "0.5", KEDA),
    Row("autoscaling.busyShare", 0.5, f"{AUTOSCALER} metrics 1 external target averageValue", "0.5",
        HPA),
    Row("autoscaling.scaleDownS", 60,
        f"{SCALED} advanced horizontalPodAutoscalerConfig behavior scaleDown"
        " stabilizationWindowSeconds", 60, KEDA),
    Row("autoscaling.scaleDownS", 60, f"{AUTOSCALER} behavior scaleDown stabilizationWindowSeconds",
        60, HPA),
    Row("autoscaling.prometheus", "http://thanos:9090",
        f"{SCALED} triggers 1 metadata serverAddress", "http://thanos:9090", KEDA),
    Row("autoscaling.prometheus", "http://thanos:9090",
        f"{SCALED} triggers 0 metadata serverAddress", "http://thanos:9090", KEDA),
    Row("pdb.maxUnavailable", "30%", "PodDisruptionBudget spec maxUnavailable", "30%"),
    Row("networkPolicy.enabled", False, "NetworkPolicy", MISSING),
    Row("networkPolicy.namespaces", ["monitoring"],
        "NetworkPolicy spec ingress 0 from 1 namespaceSelector matchLabels",
        {"kubernetes.io/metadata.name": "monitoring"}),
    Row("metrics.serviceMonitor", True, "ServiceMonitor spec endpoints 0 path", "/metrics"),
    Row("metrics.rules", True, "PrometheusRule spec groups 0 name", "addnorm"),
    Row("metrics.intervalS", 15, "ServiceMonitor spec endpoints 0 interval", "15s", MONITOR),
    Row("metrics.labels", LABELS, "ServiceMonitor metadata labels release", "prometheus", MONITOR),
    Row("metrics.labels", LABELS, "PrometheusRule metadata labels release", "prometheus", RULES),
    Row("gateway.enabled", True, PARENT, "own", OWN_GATEWAY),
    Row("gateway.name", "own", "HTTPRoute spec parentRefs 0 name", "own", GATEWAY),
    Row("gateway.namespace", "edge", "HTTPRoute spec parentRefs 0 namespace", "edge", GATEWAY),
    Row("ingress.enabled", True, "Ingress spec rules 0 http paths 0 pathType", "Prefix"),
    Row("ingress.className", "nginx", "Ingress spec ingressClassName", "nginx", INGRESS),
    Row("ingress.tlsSecret", "cert", "Ingress spec tls 0 secretName", "cert", INGRESS),
    Row("ingress.annotations", {"a/b": "1"}, "Ingress metadata annotations", {"a/b": "1"}, INGRESS),
    Row("hosts", ["a.example"], "HTTPRoute spec hostnames", ["a.example"], GATEWAY),
    Row("hosts", ["a.example"], "Ingress spec rules 0 host", "a.example", INGRESS),
    Row("paths", ["/v1"], f"{RULE} matches", [MATCH], GATEWAY),
    Row("paths", ["/embed"], "Ingress spec rules 0 http paths 0 path", "/embed", INGRESS),
]  # fmt: skip
EVERYTHING = {**KEDA, **KEYS, **GATEWAY, **INGRESS, **PVC, **GPU, "hosts": ["a.example"]}
EVERYTHING |= {"metrics": {"serviceMonitor": True, "rules": True, "labels": LABELS}}
