"""The one place that turns an exception into a response."""

import logging
import math

import orjson
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from addnorm.service.errors import (
    InternalError,
    MethodNotAllowed,
    NotFound,
    OutOfMemory,
    ServiceError,
)
from addnorm.service.protocols.codec.negotiation import JSON
from addnorm.service.telemetry.request_context import Envelope, RequestContext

log = logging.getLogger("addnorm")
STARLETTE = {404: NotFound, 405: MethodNotAllowed}  # what its routers raise


def error_response(envelope: Envelope, error: ServiceError) -> Response:
    headers = dict(error.headers)
    if (seconds := retry_after(error)) is not None:
        headers["retry-after"] = str(seconds)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.ends_connection:
        headers["connection"] = "close"
    return Response(orjson.dumps(envelope(error)), error.status, headers, JSON)


def retry_after(error: ServiceError) -> int | None:
    """Whole seconds; None if a retry would not help."""
    return None if error.retry_after_s is None else max(1, math.ceil(error.retry_after_s))


def noted(error: Exception, method: str, path: str, context: RequestContext) -> ServiceError:
    """What the caller of a request is told of any exception, as its report says from now on."""
    known = service_error(error, method, path, context.request_id)
    context.note(known)
    if known.status == 500 or isinstance(known, OutOfMemory):
        where = f"{method} {path[:200]}, request {context.request_id}"
        traceback = error if known.status == 500 else None
        log.error("%s: %s", where, known.message, exc_info=traceback)
    _forget_frames(error)
    return known


def _forget_frames(error: BaseException | None) -> None:
    """Frees what its frames hold: bodies and rows. Some of these frames hold the future that holds
    the error, and so all of them would stay until the collector looks for such cycles."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def service_error(error: Exception, method: str, path: str, request_id: str) -> ServiceError:
    """What the caller is told of any exception."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory()
    if isinstance(error, HTTPException) and (known := STARLETTE.get(error.status_code)):
        allowed = Headers(error.headers or {}).get("allow")
        what = f"send {allowed}" if allowed else "there is no such path; /docs lists all paths"
        return known(f"{method} {path}: {what}", headers=error.headers)
    return InternalError(request_id)
