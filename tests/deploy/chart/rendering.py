"""Renders the chart, and compares objects with the schemas of their makers."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import kserve.models
import kubernetes_validate
import yaml
from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as prometheus

DEPLOY = Path(__file__).parents[3] / "deploy"
KUBERNETES = "1.37"
IMAGE = "registry.example.com/addnorm@sha256:" + "0" * 64
Object = dict[str, Any]
MISSING = "(missing)"
MODELS = {
    "ScaledObject": keda.ScaledObject,
    "ServiceMonitor": prometheus.ServiceMonitor,
    "PodMonitor": prometheus.PodMonitor,
    "PrometheusRule": prometheus.PrometheusRule,
}
KSERVE = {
    "ClusterServingRuntime": "V1alpha1ClusterServingRuntime",
    "InferenceService": "V1beta1InferenceService",
}
API_VERSIONS = {
    "ScaledObject": "keda.sh/v1alpha1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ClusterServingRuntime": "serving.kserve.io/v1alpha1",
    "InferenceService": "serving.kserve.io/v1beta1",
    "HTTPRoute": "gateway.networking.k8s.io/v1",
}
PRIMITIVES = {"str": str, "int": int, "bool": bool}
WITHOUT_SCHEMA = {"HTTPRoute"}  # no package of PyPI has that of the Gateway API


@cache
def chart() -> helm_python.Chart:
    return helm_python.Chart.load(DEPLOY / "chart")


def render(values: Mapping[str, Any], release: str = "demo") -> dict[str, Object]:
    """Kind -> object."""
    texts = rendered(values, release)
    texts.pop("addnorm/templates/NOTES.txt")
    objects = [entry for text in texts.values() for entry in yaml.safe_load_all(text) if entry]
    return {entry["kind"]: entry for entry in objects}


def rendered(values: Mapping[str, Any], release: str = "demo") -> dict[str, str]:
    """Template -> text. HelmError if the values are refused."""
    values = {"image": IMAGE, **values}
    chart().validate_schema(values)
    texts: dict[str, str] = chart().render(values, name=release, namespace="models")
    return texts


def problems(entry: Object) -> list[str]:
    """What the schema of the object's kind does not allow. Unknown fields count."""
    return _problems(json.dumps(entry))


@cache  # the same objects come again and again, and Kubernetes' schemas are large
def _problems(text: str) -> list[str]:
    entry = json.loads(text)
    kind = entry["kind"]
    if kind in API_VERSIONS and entry.get("apiVersion") != API_VERSIONS[kind]:
        return [f"{kind} is of {API_VERSIONS[kind]}"]
    if kind in WITHOUT_SCHEMA:
        return []
    if kind in MODELS:
        model = MODELS[kind].model_validate(entry)
        kept = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return list(_lost(entry, kept, kind))
    if kind in KSERVE:
        return list(_of_kserve(entry, KSERVE[kind], kind))
    try:
        kubernetes_validate.validate(entry, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error)]
    return []


def _of_kserve(value: Any, kind: str, where: str) -> Iterator[str]:
    """What does not fit the types of KServe's own client. Types of Kubernetes are left to
    `pod_of`."""
    if kind.startswith("list["):
        for number, entry in enumerate(value):
            yield from _of_kserve(entry, kind[5:-1], f"{where}[{number}]")
    elif kind in PRIMITIVES:
        if not isinstance(value, PRIMITIVES[kind]):
            yield f"{where} is {value!r}, no {kind}"
    elif isinstance(value, dict) and (model := getattr(kserve.models, kind, None)):
        attributes = {field: name for name, field in model.attribute_map.items()}
        for field, inner in value.items():
            if field not in attributes:
                yield f"{where}.{field} is unknown"
            else:
                of = model.openapi_types[attributes[field]]
                yield from _of_kserve(inner, of, f"{where}.{field}")
        model(**{attributes[name]: inner for name, inner in value.items() if name in attributes})


def pod_of(entry: Object) -> Object:
    """A pod with the parts of a ClusterServingRuntime that KServe gives to pods."""
    spec = {name: entry["spec"][name] for name in ("containers", "volumes")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}


def _lost(given: Any, kept: Any, where: str) -> Iterator[str]:
    """The fields of `given` that are not in `kept`."""
    if isinstance(given, dict):
        for name, value in given.items():
            if not isinstance(kept, dict) or name not in kept:
                yield f"{where}.{name} is unknown"
            else:
                yield from _lost(value, kept[name], f"{where}.{name}")
    elif isinstance(given, list):
        for number, value in enumerate(given):
            yield from _lost(value, kept[number], f"{where}[{number}]")


def with_value(values: Mapping[str, Any], path: str, to: Any) -> dict[str, Any]:
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
