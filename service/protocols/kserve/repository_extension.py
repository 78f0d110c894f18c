"""Triton's model repository extension: which bundles there are, loading and unloading.

Off unless ADDNORM_ADMIN is set.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from addnorm.service.errors import Forbidden, InvalidInput, StartupError, UnknownField
from addnorm.service.models.names import read_pin
from addnorm.service.protocols.codec.negotiation import JSON
from addnorm.service.protocols.codec.openapi import body_schema
from addnorm.service.protocols.codec.validation import Body
from addnorm.service.protocols.dialect_errors import V2_ERRORS
from addnorm.service.protocols.protocol import Parts
from addnorm.service.scheduling.deadline import Deadline

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


def _documented(body: type[BaseModel]) -> dict[str, Any]:
    content = {"required": False, "content": {JSON: {"schema": body_schema(body)}}}
    return {
        "responses": {**V2_ERRORS.documented, 403: CLOSED},
        "openapi_extra": {"requestBody": content},
    }


@dataclass(frozen=True)
class RepositoryRoutes:
    parts: Parts

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v2")
        router.post(
            "/repository/index",
            summary="Every model and version, and its state",
            **_documented(IndexRequest),
        )(self.index)
        # clients that put `NAME/VERSION` in a name's place ask for one version
        for path, which, load, unload in (
            ("{model}", "all versions of a model", self.load, self.unload),
            ("{model}/{version}", "one version", self.load_version, self.unload_version),
        ):
            router.post(
                f"/repository/models/{path}/load",
                response_class=Response,
                summary=f"Loads {which} from the folder",
                **_documented(LoadRequest),
            )(load)
            router.post(
                f"/repository/models/{path}/unload",
                response_class=Response,
                summary=f"Takes {which} out of service",
                **_documented(UnloadRequest),
            )(unload)
        router.post(
            "/repository/models/{model}/{version}/pin",
            response_class=Response,
            summary="Makes a version what the bare name means, until the next start",
            **_documented(PinRequest),
        )(self.pin)
        return router

    async def index(self, request: Request) -> list[dict[str, str]]:
        return self.states((await self._read(request, IndexRequest)).ready)

    def states(self, ready: bool) -> list[dict[str, str]]:
        """ready: whether to name only what is. Forbidden unless ADDNORM_ADMIN is set."""
        self._check_open()
        return [
            {"name": name, "version": str(version), "state": state, "reason": reason}
            for name, version, state, reason in self.parts.models.index()
            if state == "READY" or not ready
        ]

    async def load(self, request: Request, model: str) -> Response:
        for name in (await self._read(request, LoadRequest)).parameters:
            raise UnknownField(
                f"parameters.{name[:60]} is not supported: a model is loaded from the server's"
                " folder of bundles, as it is",
                param=name[:60],
            )
        await asyncio.to_thread(self.parts.repository.load, model)
        return Response()

    async def load_version(self, request: Request, model: str, version: str) -> Response:
        return await self.load(request, f"{model}/{version}")

    async def unload(self, request: Request, model: str) -> Response:
        await self._read(request, UnloadRequest)
        await asyncio.to_thread(self.parts.repository.unload, model)
        return Response()

    async def unload_version(self, request: Request, model: str, version: str) -> Response:
        return await self.unload(request, f"{model}/{version}")

    async def pin(self, request: Request, model: str, version: str) -> Response:
        # a version is a number or `latest`. Also while one is loaded: a rollback must not wait
        await self._read(request, PinRequest)
        try:
            pin = read_pin(version)
        except ValueError as error:
            raise InvalidInput(f"version is {error}", param="version") from None
        try:
            self.parts.models.pin(model, pin)
        except StartupError as error:
            raise InvalidInput(f"version is {version}: {error}", param="version") from None
        log.info("%s means version %s now", model, version)
        return Response()

    async def _read(self, request: Request, model: type[Body]) -> Body:
        """The body, which may be empty. Forbidden unless ADDNORM_ADMIN is set."""
        self._check_open()
        body = await self.parts.receiver.receive(request)
        deadline = Deadline(self.parts.settings.timeout_s)
        return await self.parts.tools.bodies.read_json(model, body or b"{}", deadline)

    def _check_open(self) -> None:
        if not self.parts.settings.admin:
            raise Forbidden(
                "the model repository is closed: start the server with ADDNORM_ADMIN=true to open"
                " it"
            )
