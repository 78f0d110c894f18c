"""The ASGI application: routes, and the one mapping from errors to answers."""

import logging
from functools import partial

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import Scope

from service import VERSION
from service.errors import Expired, Overloaded, ServiceError
from service.infer import Inference
from service.lifecycle import Edge
from service.routes import kserve, models, native, openai, openapi, ops, text
from service.routes.http import error_response

log = logging.getLogger("addnorm")


def create_app(inference: Inference) -> Edge:
    app = FastAPI(
        title="Addnorm",
        description="Padded token batches with masks in, normalized activations and logits out. "
        "The same sequence gives the same bits, whatever the padding, whoever shares the batch.",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
    )
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]  # as FastAPI says to extend it
    app.state.inference = inference
    for router in (native.router, openai.router, text.router):
        app.include_router(router, tags=["inference"])
    app.include_router(models.router, tags=["models"])
    app.include_router(kserve.router, tags=["KServe V2"])
    app.include_router(ops.router, tags=["operations"])
    app.mount("/swagger", ops.swagger)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(Exception, _unexpected)
    for path, endpoint in (("/v1/infer", native.infer), ("/v1/embeddings", openai.embeddings)):
        app.router.routes.insert(0, Direct(path, endpoint, methods=["POST"]))
    return Edge(app, inference.metrics)


class Direct(Route):
    """Dispatches past FastAPI's own route, which documents it: that resolves dependencies this endpoint has not."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return match, {**found, "route": self}


async def _service_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    if isinstance(error, Overloaded | Expired):
        request.app.state.inference.metrics.rejected(error.code)
    if error.status == 500:
        log.error("%s %s: %s", request.method, request.url.path, error.message, exc_info=error)
    return error_response(request.url.path, error)


async def _http_exception(request: Request, error: Exception) -> JSONResponse:
    """Starlette's own: unknown paths, wrong methods."""
    assert isinstance(error, HTTPException)
    known = ServiceError(f"{request.method} {request.url.path}: {error.detail}")
    known.status, known.type = error.status_code, "invalid_request_error"
    known.code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    answer = error_response(request.url.path, known)
    answer.headers.update(error.headers or {})
    return answer


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    answer = error_response(request.url.path, ServiceError(f"an error of ours: {type(error).__name__}"))
    answer.headers["connection"] = "close"  # the server drops it after an error it did not expect
    return answer
