"""The ASGI application: routes, and the one mapping from errors to answers."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import FastAPI, Request, Response
from opentelemetry.trace import Tracer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from addnorm.service import VERSION
from addnorm.service.errors import Expired, Overloaded, ServiceError
from addnorm.service.inference.pipeline import Inference
from addnorm.service.protocols import model_list, native, openai, operations, tokenization
from addnorm.service.protocols.codec import openapi
from addnorm.service.protocols.codec.bodies import error_response
from addnorm.service.protocols.kserve import infer as kserve_infer
from addnorm.service.protocols.kserve import router as kserve
from addnorm.service.server.auth import Keys
from addnorm.service.server.middleware import AuthMiddleware, RequestMiddleware

Endpoint = Callable[..., Awaitable[Response]]
log = logging.getLogger("addnorm")


def create_app(inference: Inference, tracer: Tracer | None = None) -> RequestMiddleware:
    app = FastAPI(
        title="Addnorm",
        description="Padded token batches with masks in, normalized activations and logits out. "
        "The same sequence gives the same bits, whatever the padding, whoever shares the batch.",
        version=VERSION,
        openapi_url=None,  # operations.py has a route that makes the document off the event loop
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # to wherever the caller's Host header says
    )
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]  # as FastAPI says to extend it
    app.state.inference = inference
    for router in (native.router, openai.router, tokenization.router):
        app.include_router(router, tags=["inference"])
    app.include_router(model_list.router, tags=["models"])
    app.include_router(kserve.router, tags=["KServe V2"])
    app.include_router(operations.router, tags=["operations"])
    app.mount("/swagger", operations.swagger)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(Exception, _unexpected)
    direct = [Direct(path, endpoint, app) for path, endpoint in DIRECT.items()]
    keys = Keys(inference.settings)
    guarded: ASGIApp = AuthMiddleware(
        Router(direct, redirect_slashes=False, default=app), keys, inference.metrics
    )
    if origins := inference.settings.cors_origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=[origin.strip() for origin in origins.split(",")],
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id", "x-request-timeout-ms"],
            expose_headers=["retry-after", "server-timing", "x-request-id"],
        )
    return RequestMiddleware(guarded, keys, inference.metrics, tracer)


DIRECT: dict[str, Endpoint] = {
    "/v1/infer": native.infer,
    "/v1/embeddings": openai.embeddings,
    "/v2/models/{model}/infer": kserve_infer.infer,
    "/v2/models/{model}/versions/{version}/infer": kserve_infer.infer_version,
}


class Direct(Route):
    """An inference route, dispatched past FastAPI, which documents it: its layers cost more than a small batch."""

    def __init__(self, path: str, endpoint: Endpoint, app: FastAPI) -> None:
        super().__init__(path, endpoint, methods=["POST"])
        self.endpoint: Endpoint = endpoint
        self._app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        # another method is FastAPI's to refuse
        return (match, {**found, "route": self}) if match == Match.FULL else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self._app
        request = Request(scope, receive, send)
        try:
            answer = await self.endpoint(request, **scope["path_params"])
        except ServiceError as error:
            answer = await _service_error(request, error)
        except Exception as error:  # ours, whatever it is: the one broad catch of these routes
            log.exception("%s", _named(request))
            answer = await _unexpected(request, error)
        await answer(scope, receive, send)


async def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    if isinstance(error, Overloaded | Expired):
        request.app.state.inference.metrics.rejected(error.code)
    if error.status == 500:
        log.error("%s: %s", _named(request), error.message, exc_info=error)
    return error_response(request.scope["path"], error)  # request.url costs as much as all of this


def _named(request: Request) -> str:
    """As the request's own log line names it."""
    return f"{request.method} {request.url.path}, request {request.state.context.request_id}"


async def _http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: unknown paths, wrong methods."""
    assert isinstance(error, HTTPException)
    known = ServiceError(f"{request.method} {request.url.path}: {error.detail}")
    known.status, known.type = error.status_code, "invalid_request_error"
    known.code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    answer = error_response(request.url.path, known)
    answer.headers.update(error.headers or {})
    return answer


async def _unexpected(request: Request, error: Exception) -> Response:
    answer = error_response(
        request.url.path, ServiceError(f"an error of ours: {type(error).__name__}")
    )
    answer.headers["connection"] = "close"  # the server drops it after an error it did not expect
    return answer
