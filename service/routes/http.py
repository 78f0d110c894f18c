"""What all protocols need of HTTP: bounded bodies, deadlines, and one envelope for errors."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from service.errors import BodyTooLarge, ClientGone, InvalidInput, ServiceError, UnsupportedMediaType
from service.infer import Inference
from service.query import Answer, Query
from service.room import Room
from service.routes.content import JSON, WINDOWS, compressed, decompressed, wanted_coding

TIMEOUT_HEADER = "x-request-timeout-ms"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Sent(NamedTuple):
    """A request as a protocol decodes it."""

    body: bytes  # decompressed
    headers: Headers


class Payload(NamedTuple):
    """An encoded answer: the parts follow each other on the wire and are never joined here."""

    parts: Sequence[bytes | memoryview]  # at least one; memoryviews of bytes, so that len() counts them
    media_type: str = JSON
    headers: Mapping[str, str] = NO_HEADERS


Encode = Callable[[Answer], Payload]
Decode = Callable[[Sent, Inference], Awaitable[tuple[Query, Encode]]]


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body, decompressed, refused as soon as it is known to be over the limit."""
    inference: Inference = request.app.state.inference
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", *WINDOWS):
        raise UnsupportedMediaType(f"Content-Encoding is {coding[:60]!r}: send {', '.join(WINDOWS)} or identity")
    declared = request.headers.get("content-length", "0")
    if int(declared) > max_bytes:  # the HTTP parser has refused all but digits
        raise BodyTooLarge(f"the body has {declared} bytes, the limit is {max_bytes}")
    body = await _whole(request, max_bytes, inference.bodies)
    return body if coding == "identity" else decompressed(body, coding, max_bytes)


async def _whole(request: Request, max_bytes: int, bodies: Room) -> bytes:
    body, more = await _piece(request, 0)
    if not more and len(body) <= max_bytes:
        return body  # as most come
    pieces, num_bytes = [body], len(body)
    with bodies.held(num_bytes) as held:
        while more and num_bytes <= max_bytes:
            body, more = await _piece(request, num_bytes)
            held.grow(len(body))
            pieces.append(body)
            num_bytes += len(body)
    if num_bytes > max_bytes:
        raise BodyTooLarge(f"the body has more than {max_bytes} bytes, the limit")
    return b"".join(pieces)


async def _piece(request: Request, num_before: int) -> tuple[bytes, bool]:
    """What has come of the body since, and whether there is more."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientGone(f"the caller left after {num_before} bytes of the body")
    if late := request.scope["state"].get("late"):  # the connection has kept the time
        raise late
    return message.get("body", b""), message.get("more_body", False)


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


async def respond(request: Request, decode: Decode) -> Response:
    """What every inference route does between its own decode and encode."""
    inference: Inference = request.app.state.inference
    own_s = timeout_s(request)
    facts = request.state.facts
    num_bytes, model = _num_bytes(request.headers), request.path_params.get("model")
    inference.scheduler.admit(own_s or inference.settings.timeout_s, facts.key, num_bytes, model)
    body = await read_body(request, inference.settings.max_body_bytes)
    started = time.monotonic()
    query, encode = await decode(Sent(body, request.headers), inference)
    query = query._replace(timeout_s=own_s or query.timeout_s, key=facts.key)
    if coding := wanted_coding(request.headers):
        encode = partial(_compressing, encode, coding)
    decode_s = time.monotonic() - started
    facts.model, facts.real_tokens, facts.padded_tokens = query.model.name, query.batch.num_tokens, query.cells.num_pads
    statistics = query.model.statistics
    try:
        payload, stages_s = await inference.answer(query, encode, partial(_left, request), facts.started)
    except ServiceError:
        statistics.failed(time.monotonic() - started)
        raise
    facts.decoded_from, facts.stages_s = started, {"decode": decode_s, **stages_s}
    statistics.answered(len(query.cells.lengths), facts.stages_s)
    inference.metrics.inferred(facts.model, facts.real_tokens, facts.padded_tokens, facts.stages_s)
    timing = ", ".join(f"{stage};dur={seconds * 1000:.2f}" for stage, seconds in facts.stages_s.items())
    return PayloadResponse(payload, timing, inference.answers)


def _num_bytes(headers: Headers) -> float:
    """Of the body as it will be parsed, infinite where the head does not say."""
    declared = headers.get("content-length")
    return math.inf if declared is None or "content-encoding" in headers else int(declared)


def _compressing(encode: Encode, coding: str, answer: Answer) -> Payload:
    plain = encode(answer)
    body = compressed(b"".join(plain.parts), coding)
    return Payload([body], plain.media_type, {**plain.headers, "content-encoding": coding})


class PayloadResponse(Response):
    """Sends a payload part by part. A large one counts among the pending answers until its caller has taken it."""

    def __init__(self, payload: Payload, server_timing: str, answers: Room) -> None:
        self.payload, self.answers = payload, answers
        self.background, self.status_code = None, 200
        self.num_bytes = num_bytes = sum(map(len, payload.parts))
        headers = {**payload.headers, "content-type": payload.media_type, "content-length": str(num_bytes)}
        headers["server-timing"] = server_timing
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self.num_bytes <= HIGH_WATER_LIMIT:
            await _send(send, *self.payload.parts)
            return
        with self.answers.held(0) as held:
            held.keep(self.num_bytes)
            # the server takes the last part only once the caller has taken the others
            await _send(send, *self.payload.parts, b"")


async def _send(send: Send, *parts: bytes | memoryview) -> None:
    *others, last = parts
    for part in others:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": last})


def error_response(path: str, error: ServiceError) -> Response:
    """The envelope of every answer that is not a success: V2's words under /v2, OpenAI's elsewhere."""
    body: Any = error.message
    if not path.startswith("/v2"):
        body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.ends_connection:
        headers["connection"] = "close"
    return Response(orjson.dumps({"error": body}), error.status, headers, JSON)
