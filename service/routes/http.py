"""What all protocols need of HTTP: bounded bodies, deadlines, and one envelope for errors."""

import math
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from service.errors import BodyTooLarge, InvalidInput, ServiceError, UnsupportedMediaType

JSON = "application/json"
TIMEOUT_HEADER = "x-request-timeout-ms"


class Error(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    error: Error


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The body can be mended: the message names field, limit and value."},
    404: {"model": ErrorBody, "description": "No such model or version."},
    413: {"model": ErrorBody, "description": "The body is over its limit."},
    415: {"model": ErrorBody, "description": "The body is not JSON."},
    429: {"model": ErrorBody, "description": "The queue is full, or the deadline cannot be met. See Retry-After."},
    503: {"model": ErrorBody, "description": "Not ready, or draining. See Retry-After."},
    504: {"model": ErrorBody, "description": "The deadline passed after the request was admitted."},
}


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body of a JSON request, refused as soon as it is known to be over the limit."""
    media_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media_type != JSON:
        raise UnsupportedMediaType(f"Content-Type is {media_type!r}: send {JSON}")
    if encoding := request.headers.get("content-encoding"):
        raise UnsupportedMediaType(f"Content-Encoding is {encoding!r}: send the body as it is")
    declared = request.headers.get("content-length", "0")
    if int(declared) > max_bytes:  # the HTTP parser has refused all but digits
        raise BodyTooLarge(f"the body has {declared} bytes, the limit is {max_bytes}")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise BodyTooLarge(f"the body has more than {max_bytes} bytes, the limit")
    return bytes(body)


def timeout_s(request: Request) -> float | None:
    """The caller's own deadline, None where it sets none."""
    sent = request.headers.get(TIMEOUT_HEADER)
    if sent is None:
        return None
    if not (sent.isascii() and sent.isdigit() and 0 < len(sent) < 10 and int(sent)):
        raise InvalidInput(
            f"{TIMEOUT_HEADER} is {sent[:60]!r}: a whole number of milliseconds, 1 or more", param=TIMEOUT_HEADER
        )
    return int(sent) / 1000


def error_response(error: ServiceError) -> JSONResponse:
    """The envelope of every answer that is not a success."""
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return JSONResponse({"error": body}, error.status, headers)
