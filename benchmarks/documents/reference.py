"""Lists of what the service has: settings, routes, errors, metrics. Read from the code."""

import ast
import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase

from addnorm.service.engine.registry import Models
from addnorm.service.environment import PREFIX
from addnorm.service.errors import ServiceError
from addnorm.service.server import wiring
from addnorm.service.server.wiring import Service
from addnorm.service.settings import Settings, descriptions
from addnorm.service.wire.codec.foreign_fields import FOREIGN
from addnorm.service.wire.telemetry.exposition import INFO_LABELS
from benchmarks.tables import bullets


def settings_list() -> str:
    return bullets(
        (f"`{PREFIX}{name.upper()}`", _default(Settings.model_fields[name].default), meaning)
        for name, meaning in descriptions().items()
    )


def _default(value: object) -> object:
    """Nothing is said of settings that are not set."""
    return "" if value in (None, {}) else value


def routes_list() -> str:
    """Routes by the dialect that the document files them under, in its order. POST is not said."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in _document()["paths"].items():
        for method, operation in methods.items():
            for tag in operation["tags"]:
                route = path if method == "post" else f"{method.upper()} {path}"
                by_tag.setdefault(tag, []).append(f"`{route}`")
    return bullets((f"**{tag}**", "", ", ".join(routes)) for tag, routes in by_tag.items())


def foreign_fields_list() -> str:
    """Fields with the same values in one entry."""
    by_values: dict[str, list[str]] = {}
    for name, foreign in FOREIGN.items():
        values = ", ".join(map(_json, foreign.values))
        by_values.setdefault(values or "none but empty ones", []).append(f"`{name}`")
    return bullets((values, "", ", ".join(names)) for values, names in by_values.items())


def _json(value: object) -> str:
    return f"`{json.dumps(value)}`"


def errors_list() -> str:
    """Every code by its status. A class that has none answers with that of a class above it."""
    return bullets(
        (f"`{kind.code}`", kind.status, f"{_paragraph(kind)} {kind.remedy}")
        for kind in sorted(kinds(ServiceError), key=lambda kind: kind.status)
        if vars(kind).get("remedy")
    )


def metrics_list() -> str:
    with _service() as service:
        metrics = service.metrics
        labels = {
            next(iter(metric.describe())).name: metric._labelnames
            for attribute in vars(metrics).values()
            for metric in (attribute.values() if isinstance(attribute, dict) else [attribute])
            if isinstance(metric, MetricWrapperBase)
        }
        labels["addnorm_model_info"] = INFO_LABELS
        return bullets(
            _metric_entry(family, labels)
            for family in metrics.registry.collect()
            if family.name.startswith("addnorm_")
        )


def _metric_entry(family: Metric, labels: Mapping[str, Any]) -> tuple[str, str, str]:
    """Its name, its labels, and what it says."""
    name = f"{family.name}_total" if family.type == "counter" else family.name
    kind = ["histogram"] if family.type == "histogram" else []
    return f"`{name}`", ", ".join([*labels.get(family.name, ()), *kind]), family.documentation


def kinds(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    """A class, and all below it."""
    yield kind
    for below in kind.__subclasses__():
        yield from kinds(below)


def _paragraph(kind: type) -> str:
    """The first of its docstring."""
    return " ".join((kind.__doc__ or "").partition("\n\n")[0].split())


def _service() -> closing[Service]:
    """Without models: it has all routes and metrics."""
    return closing(wiring.build(Models([]), Settings()))


@cache
def _document() -> dict[str, Any]:
    """The answer of /openapi.json."""

    async def send(service: Service) -> dict[str, Any]:
        transport = httpx.ASGITransport(app=service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://addnorm") as client:
            return (await client.get("/openapi.json")).json()  # type: ignore[no-any-return]

    with _service() as service:
        return asyncio.run(send(service))


def folders_list(root: Path, folder: str) -> str:
    """The folders in one. Those below them have a sentence too."""
    packages = sorted((root / folder).rglob("*/__init__.py"))
    purposes = {path.parent: purpose(path) for path in packages}
    return bullets(
        (f"`{package.name}/`", "", sentence)
        for package, sentence in purposes.items()
        if package.parent == root / folder
    )


def purpose(path: Path) -> str:
    """The first sentence of a file. ValueError without one."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    if not docstring:
        raise ValueError(f"{path} does not begin with a sentence that says what it does")
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0].rstrip(".:")
