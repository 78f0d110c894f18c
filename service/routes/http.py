"""What all protocols need of HTTP: bounded bodies, deadlines, and one envelope for errors."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import orjson
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from service.errors import BodyTooLarge, ClientGone, InvalidInput, ServiceError, UnsupportedMediaType
from service.infer import Answer, Inference, Query
from service.models import Models

JSON = "application/json"
Encode = Callable[[Answer], bytes]
Decode = Callable[[bytes, Models], tuple[Query, Encode]]
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
    if request.headers.get("inference-header-content-length") is not None:
        raise InvalidInput("binary tensors are not offered: send JSON tensors (tritonclient: binary_data=False)")
    if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
        raise UnsupportedMediaType(f"Content-Encoding is {encoding!r}: send the body as it is")
    declared = request.headers.get("content-length", "0")
    if int(declared) > max_bytes:  # the HTTP parser has refused all but digits
        raise BodyTooLarge(f"the body has {declared} bytes, the limit is {max_bytes}")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise BodyTooLarge(f"the body has more than {max_bytes} bytes, the limit")
    except ClientDisconnect:
        raise ClientGone(f"the caller left after {len(body)} bytes of the body") from None
    return bytes(body)


async def _left(request: Request) -> None:
    """Returns when the caller has left. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def timeout_s(request: Request) -> float | None:
    """The caller's own deadline, None where it sets none."""
    sent = request.headers.get(TIMEOUT_HEADER)
    if sent is None:
        return None
    digits = sent.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits)):
        raise InvalidInput(
            f"{TIMEOUT_HEADER} is {sent[:60]!r}: a whole number of milliseconds, 1 to 999999999", param=TIMEOUT_HEADER
        )
    return int(digits) / 1000


def validation_error(error: ValidationError, model: type[BaseModel], reserved: Sequence[str] = ()) -> InvalidInput:
    """pydantic's first complaint in our words: field, what is wrong, value."""
    first = error.errors(include_url=False)[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")[:200]
    if not field:
        return InvalidInput(f"the body is not a JSON object: {first['msg']}")
    param = field.split("[")[0]
    if field in reserved:
        return InvalidInput(f"{field} is reserved for a later version: leave it out", param=param)
    words = {
        "extra_forbidden": f"{field} is unknown; known are {', '.join(_known(model, first['loc']))}",
        "missing": f"{field} is missing",
    }
    return InvalidInput(words.get(first["type"], f"{field}: {first['msg']}, got {shown(first['input'])}"), param=param)


def _known(model: type[BaseModel], loc: tuple[int | str, ...]) -> Iterable[str]:
    """The keys that stand where `loc` ends."""
    for part in loc[:-1]:
        inner = model.model_fields[part].annotation if isinstance(part, str) else None
        nested = [kind for kind in (*get_args(inner), inner) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        model = nested[0] if nested else model
    return model.model_fields


def shown(value: Any) -> str:
    """A value as its sender wrote it, cut short."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # nested or integers over 64 bits
        text = "a value too deep or too large to show"
    return text if len(text) <= 60 else f"{text[:60]}..."


async def respond(request: Request, decode: Decode) -> Response:
    """What every inference route does between its own decode and encode."""
    inference: Inference = request.app.state.inference
    body = await read_body(request, inference.settings.max_body_bytes)
    started = time.monotonic()
    query, encode = decode(body, inference.models)
    query = replace(query, timeout_s=timeout_s(request) or query.timeout_s)
    decode_s = time.monotonic() - started
    manifest = query.model.bundle.manifest
    facts = request.state.facts
    facts.model, facts.real_tokens, facts.padded_tokens = manifest.name, query.batch.num_tokens, query.cells.num_pads
    content, stages_s = await inference.answer(query, encode, partial(_left, request))
    facts.stages_s = {"decode": decode_s, **stages_s}
    inference.metrics.inferred(facts.model, facts.real_tokens, facts.padded_tokens, facts.stages_s)
    timing = ", ".join(f"{stage};dur={seconds * 1000:.2f}" for stage, seconds in facts.stages_s.items())
    return Response(content, media_type=JSON, headers={"server-timing": timing})


def error_response(path: str, error: ServiceError) -> JSONResponse:
    """The envelope of every answer that is not a success: V2's words under /v2, OpenAI's elsewhere."""
    body: Any = error.message
    if not path.startswith("/v2"):
        body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return JSONResponse({"error": body}, error.status, headers)
