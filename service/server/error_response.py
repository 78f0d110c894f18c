"""The one place that turns an exception into a response."""

import logging
import math

import orjson
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from addnorm.service.asking.ask import Ask, Envelope
from addnorm.service.errors import (
    InternalError,
    MethodNotAllowed,
    NotFound,
    OutOfMemory,
    ServiceError,
)
from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.dialect_errors import STATUSES

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
    status = STATUSES.get(envelope, {}).get(error.status, error.status)
    return Response(orjson.dumps(envelope(error)), status, headers, JSON)


def retry_after(error: ServiceError) -> int | None:
    """Whole seconds; None if a retry would not help."""
    return None if error.retry_after_s is None else max(1, math.ceil(error.retry_after_s))


def note_error(error: BaseException, method: str, path: str, ask: Ask) -> ServiceError:
    """The error that a request's caller is told of for any exception; its report says so too."""
    service_error: ServiceError = InternalError(ask.id)
    if isinstance(error, ServiceError):
        service_error = error
    elif isinstance(error, MemoryError):
        service_error = OutOfMemory()
    elif isinstance(error, HTTPException) and error.status_code in STARLETTE:
        methods = Headers(error.headers or {}).get("allow")
        advice = f"send {methods}" if methods else "there is no such path; /docs lists all paths"
        service_error = STARLETTE[error.status_code](
            f"{method} {path}: {advice}", headers=error.headers
        )
    ask.note(service_error)
    if service_error.status == 500 or isinstance(service_error, OutOfMemory):
        place = f"{method} {path[:200]}, request {ask.id}"
        traceback = error if service_error.status == 500 else None
        log.error("%s: %s", place, service_error.message, exc_info=traceback)
    # Frees what its frames hold: bodies and rows. Some of these frames hold the future that holds
    # the error, and so all of them would stay until the collector looks for such cycles.
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return service_error
