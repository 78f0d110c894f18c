"""The OpenAPI document beyond what FastAPI sees: bodies read by routes, examples."""

import re
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from addnorm.service.engine.manifest import WindowRule
from addnorm.service.wire.codec.negotiation import JSON

if TYPE_CHECKING:
    from fastapi import FastAPI
    from fastapi.routing import APIRoute

COMPONENTS = "#/components/schemas/"
ABOUT = ("title", "description", "default")  # what a schema says of a field beside its values
NULL = {"type": "null"}
NO_FIELDS = {"type": "object", "maxProperties": 0}
FASTAPIS_422 = "HTTPValidationError"  # the schema of its body
Responses = dict[int | str, dict[str, Any]]


DEADLINE: dict[str, Any] = {
    "name": "x-request-timeout-ms",
    "in": "header",
    "description": "The deadline, instead of the server's own.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
}


def by_name(route: "APIRoute") -> str:
    """The name that a generated client gives the operation."""
    return route.name


def by_name_and_path(route: "APIRoute") -> str:
    """The same of a route that has several paths, as FastAPI makes it."""
    return re.sub(r"\W", "_", f"{route.name}{route.path_format}") + "_post"


def query(name: str, description: str) -> dict[str, Any]:
    """Documents a parameter of the query, which may be left out."""
    schema = {"anyOf": [{"type": "string"}, NULL], "title": name.capitalize()}
    parameter = {"name": name, "in": "query", "required": False, "schema": schema}
    return {"openapi_extra": {"parameters": [{**parameter, "description": description}]}}


def examples(by_title: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"value": value} for name, value in by_title.items()}


def json_body(
    model: type[BaseModel], by_title: Mapping[str, Any], is_closed: bool, **media_types: Any
) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its own body. by_title: example bodies."""
    schema = body_schema(model, is_closed)
    content = {JSON: {"schema": schema, "examples": examples(by_title)}, **media_types}
    return {"requestBody": {"required": True, "content": content}}


def body_schema(model: type[BaseModel], is_closed: bool) -> dict[str, Any]:
    """Schema of a body that `codec/validation.py` reads: where a field may be absent, null is
    taken. is_closed: whether fields that it does not have are rejected."""
    schema: dict[str, Any] = _as_read(model.model_json_schema(), is_closed)
    return schema


def _as_read(node: Any, is_closed: bool) -> Any:
    if isinstance(node, list):
        return [_as_read(part, is_closed) for part in node]
    if not isinstance(node, dict):
        return node
    is_closed = is_closed or node.get("title") == WindowRule.__name__
    node = {name: _as_read(part, is_closed) for name, part in node.items()}
    if isinstance(fields := node.get("properties"), dict):
        required_names = node.get("required", ())
        for name, schema in fields.items():
            if name in required_names:
                continue
            # null is added where pydantic writes `| None`: beside what describes the field
            about = {key: part for key, part in schema.items() if key in ABOUT}
            value = {key: part for key, part in schema.items() if key not in ABOUT}
            choices = value.get("anyOf", [value])
            if value and value != NULL and NULL not in choices:
                choices = [*choices, NULL]
            if not is_closed and value and about.get("default", "") is None:
                choices = [*choices, NO_FIELDS]
            if choices != [value]:
                fields[name] = {"anyOf": choices, **about}
        if node.get("additionalProperties") is False:
            node["additionalProperties"] = NULL if is_closed else True
    return node


def document(app: "FastAPI") -> dict[str, Any]:
    """FastAPI's document, with bodies' schemas among the components, for generated clients."""
    from fastapi.openapi.utils import get_openapi  # takes a while to import

    if app.openapi_schema is None:
        openapi = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        openapi = _rewritten(openapi)  # a copy: routes keep theirs
        schemas = openapi.setdefault("components", {}).setdefault("schemas", {})
        for operation in chain.from_iterable(map(dict.values, openapi["paths"].values())):
            media_type = operation.get("requestBody", {}).get("content", {}).get(JSON, {})
            schema = media_type.get("schema", {})
            if "title" in schema:  # it stands in the document as a whole
                body_schemas = {**schema.pop("$defs", {}), schema["title"]: schema}
                for name, part in body_schemas.items():
                    assert schemas.setdefault(name, part) == part, f"two schemas are called {name}"
                media_type["schema"] = {"$ref": COMPONENTS + schema["title"]}
            # FastAPI documents a 422 of its own for every route with a parameter. Routes answer 400
            # instead, or have a 422 of theirs.
            if FASTAPIS_422 in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
        for name in (FASTAPIS_422, "ValidationError"):
            schemas.pop(name, None)
        app.openapi_schema = openapi
    return app.openapi_schema


def _rewritten(node: Any) -> Any:
    """A copy whose references among pydantic's `$defs` lead to the components."""
    if isinstance(node, dict):
        return {
            name: value.replace("#/$defs/", COMPONENTS) if name == "$ref" else _rewritten(value)
            for name, value in node.items()
        }
    return [_rewritten(part) for part in node] if isinstance(node, list) else node
