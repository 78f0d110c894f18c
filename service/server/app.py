"""The ASGI application: routes, and the middleware around them."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request, Response

# not `fastapi.FastAPI`: in its place OpenTelemetry's auto-instrumentation puts a class of its own,
# whose spans would stand beside those of telemetry/tracing.py
from fastapi.applications import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from addnorm.service import VERSION
from addnorm.service.models.readiness import Readiness
from addnorm.service.protocols.codec import openapi
from addnorm.service.protocols.dialect_errors import OPENAI_ERRORS
from addnorm.service.protocols.protocol import Envelopes, Mounted, Scopes
from addnorm.service.protocols.routes.inference_route import InferenceRoute
from addnorm.service.server.auth import Entrance
from addnorm.service.server.middleware import (
    AuthMiddleware,
    ErrorMiddleware,
    HeadMiddleware,
    RequestMiddleware,
    SendingMiddleware,
)
from addnorm.service.server.origins import Origins, named_origins
from addnorm.service.settings import Settings
from addnorm.service.telemetry.report import Reporter


class Documented(FastAPI):
    """FastAPI, with this project's OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        return openapi.document(self)


class ByPath:
    """Dispatches inferences: a route whose path has no parameters is found in a dictionary, as the
    router tries all in turn. FastAPI has all other paths, and other methods of these."""

    def __init__(self, routes: Sequence[InferenceRoute], fastapi: ASGIApp) -> None:
        # of several with one path the first, as the router has it
        self._by_path = {
            route.path: route for route in reversed(routes) if not route.param_convertors
        }
        self._by_pattern = Router(routes, redirect_slashes=False, default=fastapi)
        self._fastapi = fastapi

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "POST":
            await self._fastapi(scope, receive, send)
            return
        route = self._by_path.get(scope.get("path", ""))
        if route is None:
            await self._by_pattern(scope, receive, send)
            return
        scope["route"] = route
        await route.handle(scope, receive, send)


def create_app(
    mounted: Sequence[Mounted],
    settings: Settings,
    entrance: Entrance,
    readiness: Readiness,
    reporter: Reporter,
    probed: tuple[str, ...],
    paths: Mapping[tuple[str, str], str],
) -> RequestMiddleware:
    """Inference routes are dispatched directly, all others by FastAPI, which documents both.

    paths: see RequestMiddleware.
    """
    direct = [
        route
        for each in mounted
        for router in each.routers
        for route in router.routes
        if isinstance(route, InferenceRoute)
    ]
    scopes = Scopes(each.protocol for each in mounted)
    errors = Middleware(ErrorMiddleware, Envelopes(mounted, OPENAI_ERRORS.envelope))
    app: ASGIApp = ByPath(direct, _fastapi(mounted, errors))
    cors = Middleware(
        CORSMiddleware,
        allow_origins=named_origins(settings),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # repeats those asked for: SDKs send headers of their own
        allow_private_network=True,  # Chrome asks before a page elsewhere calls this network
        expose_headers=["retry-after", "server-timing", "x-addnorm-fingerprint", "x-request-id"],
    )
    middleware = [
        *([cors] if settings.cors_origins else []),
        errors,
        Middleware(HeadMiddleware, Origins(settings, entrance.keys), probed),
        Middleware(AuthMiddleware, entrance, scopes),
        Middleware(SendingMiddleware, entrance.gate, scopes),
    ]
    for kind, arguments, named in reversed(middleware):
        app = kind(app, *arguments, **named)
    return RequestMiddleware(app, reporter, readiness, paths, probed)


def _fastapi(mounted: Sequence[Mounted], errors: Middleware) -> FastAPI:
    """errors: answers what routes raise before FastAPI's own layers see it. Those answer 500 to
    every exception that reaches them, and so do layers that instrumentation puts around them."""
    app = Documented(
        middleware=[errors],
        telemetry={"tracing": False, "metrics": False, "logs": False},  # has its own spans
        title="Addnorm",
        description="Padded token batches with masks in, normalized activations and logits out. "
        "The same sequence gives the same bits, whatever the padding, whoever shares the batch.",
        version=VERSION,
        openapi_tags=[
            {"name": each.protocol.tag, "externalDocs": {"url": each.protocol.reference}}
            for each in mounted
            if each.protocol.reference
        ],
        openapi_url=None,  # probes.py has a route that makes the document off the event loop
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # to wherever the caller's Host header says
    )
    for each in mounted:
        for router in each.routers:
            app.include_router(router, tags=[each.protocol.tag])
    app.add_exception_handler(HTTPException, _pass_on)
    return app


async def _pass_on(request: Request, error: Exception) -> Response:
    """To ErrorMiddleware, instead of a response of FastAPI's own."""
    raise error
