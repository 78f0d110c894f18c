"""Triton's model repository extension: which bundles there are, loading and unloading. Off unless ADDNORM_ADMIN."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from addnorm.service.errors import Forbidden, UnknownField
from addnorm.service.inference.pipeline import Inference
from addnorm.service.protocols.codec.bodies import read_body
from addnorm.service.protocols.codec.negotiation import JSON
from addnorm.service.protocols.codec.validation import Body, validated
from addnorm.service.protocols.kserve.metadata import ref
from addnorm.service.protocols.kserve.schema import V2_ERRORS, V2Error
from addnorm.service.scheduling.deadline import Deadline

router = APIRouter(prefix="/v2")
ERRORS = {**V2_ERRORS, 403: {"model": V2Error, "description": "ADDNORM_ADMIN is not set."}}


class ModelState(BaseModel):
    name: str
    version: str
    state: str = Field(description="READY, LOADING or UNAVAILABLE.")
    reason: str = Field(
        description="Why it is not served, or what is wrong with what lies on disk."
    )


class IndexRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    ready: bool = Field(False, description="Whether to name only what is ready.")


class LoadRequest(BaseModel):
    """Parameters that would bring a model or a configuration along are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    parameters: dict[str, Any] = {}


class UnloadRequest(LoadRequest):
    """`unload_dependents` is let through: no model depends on another."""


def _documented(body: type[BaseModel]) -> dict[str, Any]:
    content = {"required": False, "content": {JSON: {"schema": body.model_json_schema()}}}
    return {"responses": ERRORS, "openapi_extra": {"requestBody": content}}


@router.post(
    "/repository/index",
    summary="Every model and version, and its state",
    **_documented(IndexRequest),
)
async def index(request: Request) -> list[ModelState]:
    inference = _admin(request)
    asked = await _asked(request, IndexRequest)
    return [
        ModelState(name=name, version=str(version), state=state, reason=reason)
        for name, version, state, reason in inference.models.index()
        if state == "READY" or not asked.ready
    ]


@router.post(
    "/repository/models/{model}/load",
    response_class=Response,
    summary="Loads a model from its folder",
    **_documented(LoadRequest),
)
async def load(request: Request, model: str) -> Response:
    inference = _admin(request)
    for name in (await _asked(request, LoadRequest)).parameters:
        raise UnknownField(
            f"parameters.{name[:60]} is not supported: a model is loaded from the server's folder of bundles, as it is",
            param=name[:60],
        )
    await inference.load(ref(model))
    return Response()


@router.post(
    "/repository/models/{model}/unload",
    response_class=Response,
    summary="Takes a model out of service",
    **_documented(UnloadRequest),
)
async def unload(request: Request, model: str) -> Response:
    inference = _admin(request)
    await _asked(request, UnloadRequest)
    await inference.unload(ref(model))
    return Response()


def _admin(request: Request) -> Inference:
    inference: Inference = request.app.state.inference
    if not inference.settings.admin:
        raise Forbidden(
            "the model repository is closed: start the server with ADDNORM_ADMIN=true to open it"
        )
    return inference


async def _asked(request: Request, model: type[Body]) -> Body:
    """The body, which may be empty."""
    inference: Inference = request.app.state.inference
    body = await read_body(request, inference.settings.max_body_bytes)
    read, deadline = (
        validated(model, body or b"{}", inference.settings),
        Deadline(inference.settings.timeout_s),
    )
    return await inference.read(len(body), read, deadline)
