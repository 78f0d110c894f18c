"""Triton's model repository extension: which bundles there are, loading and unloading.

Off unless ADDNORM_ADMIN is set.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.names import read_pin
from addnorm.service.errors import Forbidden, InvalidInput, StartupError, UnknownField
from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.codec.openapi import body_schema
from addnorm.service.wire.codec.validation import Body
from addnorm.service.wire.dialect_errors import V2_ERRORS
from addnorm.service.wire.route import Parts, PlainRoute, parts_of
from addnorm.service.wire.serving import receive_body

log = logging.getLogger("addnorm")
CLOSED = {"model": V2_ERRORS.body, "description": "ADDNORM_ADMIN is not set."}


class IndexRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    ready: bool = Field(False, description="Whether to name only what is ready.")


class LoadRequest(BaseModel):
    """Parameters that would bring a model or a configuration along are rejected."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    parameters: dict[str, Any] = {}


class UnloadRequest(LoadRequest):
    """`unload_dependents` is accepted and has no effect: no model depends on another."""


class PinRequest(BaseModel):
    """No field is known."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


async def index(request: Request) -> list[dict[str, str]]:
    return states(parts_of(request), (await _read(request, IndexRequest)).ready)


def states(parts: Parts, ready: bool) -> list[dict[str, str]]:
    """ready: whether to name only what is. Forbidden unless ADDNORM_ADMIN is set."""
    _check_open(parts)
    return [
        {"name": name, "version": str(version), "state": state, "reason": reason}
        for name, version, state, reason in parts.models.index()
        if state == "READY" or not ready
    ]


async def load(request: Request, model: str) -> Response:
    for name in (await _read(request, LoadRequest)).parameters:
        raise UnknownField(
            f"parameters.{name[:60]} is not supported: a model is loaded from the server's"
            " folder of bundles, as it is",
            param=name[:60],
        )
    await asyncio.to_thread(parts_of(request).repository.load, model)
    return Response()


async def load_version(request: Request, model: str, version: str) -> Response:
    return await load(request, f"{model}/{version}")


async def unload(request: Request, model: str) -> Response:
    await _read(request, UnloadRequest)
    await asyncio.to_thread(parts_of(request).repository.unload, model)
    return Response()


async def unload_version(request: Request, model: str, version: str) -> Response:
    return await unload(request, f"{model}/{version}")


async def pin(request: Request, model: str, version: str) -> Response:
    # a version is a number or `latest`. Also while one is loaded: a rollback must not wait
    await _read(request, PinRequest)
    try:
        version_pin = read_pin(version)
    except ValueError as error:
        raise InvalidInput(f"version is {error}", param="version") from None
    try:
        parts_of(request).models.pin(model, version_pin)
    except StartupError as error:
        raise InvalidInput(f"version is {version}: {error}", param="version") from None
    log.info("%s means version %s now", model, version)
    return Response()


async def _read(request: Request, model: type[Body]) -> Body:
    """The body, which may be empty. Forbidden unless ADDNORM_ADMIN is set."""
    parts = parts_of(request)
    _check_open(parts)
    ask: Ask = request.state.ask
    ask.timeout_s = parts.settings.timeout_s
    body = await receive_body(request.headers, request.receive, ask, parts)
    return await parts.tools.bodies.read_json(model, body or b"{}", ask)


def _check_open(parts: Parts) -> None:
    if not parts.settings.admin:
        raise Forbidden(
            "the model repository is closed: start the server with ADDNORM_ADMIN=true to open it"
        )


def _route(
    path: str, answer: Callable[..., Any], summary: str, body: type[BaseModel], **documented: Any
) -> PlainRoute:
    content = {"required": False, "content": {JSON: {"schema": body_schema(body, is_closed=True)}}}
    errors = {**V2_ERRORS.documented, 403: CLOSED}
    documented["openapi_extra"] = {"requestBody": content}
    return PlainRoute(path, answer, summary, errors, method="POST", documented=documented)


MODELS = "/v2/repository/models"
ROUTES = (
    _route("/v2/repository/index", index, "Every model and version, and its state", IndexRequest),
    *(
        _route(f"{MODELS}/{path}", answer, summary, body, response_class=Response)
        for path, answer, summary, body in (
            ("{model}/load", load, "Loads all versions of a model from the folder", LoadRequest),
            (
                "{model}/unload",
                unload,
                "Takes all versions of a model out of service",
                UnloadRequest,
            ),
            # clients that put `NAME/VERSION` in a name's place ask for one version
            (
                "{model}/{version}/load",
                load_version,
                "Loads one version from the folder",
                LoadRequest,
            ),
            (
                "{model}/{version}/unload",
                unload_version,
                "Takes one version out of service",
                UnloadRequest,
            ),
            (
                "{model}/{version}/pin",
                pin,
                "Makes a version what the bare name means, until the next start",
                PinRequest,
            ),
        )
    ),
)
