"""The ASGI application: routes, request ids, and the one mapping from errors to answers."""

import logging
import re
import uuid

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import ServiceError
from service.infer import Inference
from service.routes import native, ops
from service.routes.http import error_response

log = logging.getLogger("addnorm")
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


def create_app(inference: Inference) -> FastAPI:
    app = FastAPI(
        title="Addnorm",
        description="Padded token batches with masks in, normalized activations and logits out. "
        "The same sequence gives the same bits, whatever the padding, whoever shares the batch.",
        version="0.1.0",
        redoc_url=None,
    )
    app.state.inference = inference
    app.include_router(native.router, tags=["inference"])
    app.include_router(ops.router, tags=["operations"])
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(RequestId)
    return app


class RequestId:
    """Every answer carries x-request-id: the caller's own if it is sane, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("x-request-id", "")
        request_id = sent if REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


async def _service_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    if error.status == 500:
        log.error("%s %s: %s", request.method, request.url.path, error.message, exc_info=error)
    return error_response(error)


async def _http_exception(request: Request, error: Exception) -> JSONResponse:
    """Starlette's own: unknown paths, wrong methods."""
    assert isinstance(error, HTTPException)
    known = ServiceError(f"{request.method} {request.url.path}: {error.detail}")
    known.status, known.type = error.status_code, "invalid_request_error"
    known.code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    answer = error_response(known)
    answer.headers.update(error.headers or {})
    return answer


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    return error_response(ServiceError(f"an error of ours: {type(error).__name__}"))
