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
    known: ServiceError = InternalError(ask.id)
    if isinstance(error, ServiceError):
        known = error
    elif isinstance(error, MemoryError):
        known = OutOfMemory()
    elif isinstance(error, HTTPException) and error.status_code in STARLETTE:
        allowed = Headers(error.headers or {}).get("allow")
        what = f"send {allowed}" if allowed else "there is no such path; /docs lists all paths"
        known = STARLETTE[error.status_code](f"{method} {path}: {what}", headers=error.headers)
    ask.note(known)
    if known.status == 500 or isinstance(known, OutOfMemory):
        where = f"{method} {path[:200]}, request {ask.id}"
        traceback = error if known.status == 500 else None
        log.error("%s: %s", where, known.message, exc_info=traceback)
    # Frees what its frames hold: bodies and rows. Some of these frames hold the future that holds
    # the error, and so all of them would stay until the collector looks for such cycles.
    left: BaseException | None = error
    while left is not None:
        left.__traceback__ = None
        left = left.__cause__ or left.__context__
    return known
