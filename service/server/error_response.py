"""The one place that turns an exception into a response."""

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
from addnorm.service.telemetry.request_context import Envelope

STARLETTE = {404: NotFound, 405: MethodNotAllowed}  # what its routers raise


def error_response(envelope: Envelope, error: ServiceError) -> Response:
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.ends_connection:
        headers["connection"] = "close"
    return Response(orjson.dumps(envelope(error)), error.status, headers, JSON)


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
