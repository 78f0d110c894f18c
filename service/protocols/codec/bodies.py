"""What all protocols need of HTTP: bounded bodies, deadlines, and one envelope for errors."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from addnorm.service.errors import (
    BodyTooLarge,
    ClientGone,
    InvalidInput,
    ServiceError,
    UnsupportedMediaType,
)
from addnorm.service.inference.pipeline import QUICK_BYTES, Inference
from addnorm.service.inference.request import InferenceRequest, InferenceResponse
from addnorm.service.models.registry import Model
from addnorm.service.protocols.codec.negotiation import (
    JSON,
    WINDOWS,
    compressed,
    decompressed,
    sliced,
    wanted_coding,
)
from addnorm.service.scheduling.byte_budget import ByteBudget
from addnorm.service.scheduling.cooperative import Steps
from addnorm.service.scheduling.deadline import Deadline

TIMEOUT_HEADER = "x-request-timeout-ms"
SENT_BYTES = 256 * 1024  # of an answer, handed to the socket in one go
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class RawRequest(NamedTuple):
    """A request as a protocol decodes it."""

    body: bytes  # decompressed
    headers: Headers
    deadline: Deadline
    context: Any = None  # what becomes known of it, for the log

    def model(self, inference: Inference, ref: str | None) -> Model:
        """The model meant, from now on the log's too, whatever is wrong with the rest."""
        model = inference.models.find(ref)
        if self.context:
            self.context.model = model.name
        return model


class Payload(NamedTuple):
    """An encoded answer: the parts follow each other on the wire and are never joined here."""

    parts: Sequence[
        bytes | memoryview
    ]  # at least one; memoryviews of bytes, so that len() counts them
    media_type: str = JSON
    headers: Mapping[str, str] = NO_HEADERS


Encode = Callable[[InferenceResponse], Steps[Payload]]
Decode = Callable[[RawRequest, Inference], Awaitable[tuple[InferenceRequest, Encode]]]


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body, decompressed, refused as soon as it is known to be over the limit."""
    inference: Inference = request.app.state.inference
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", *WINDOWS):
        raise UnsupportedMediaType(
            f"Content-Encoding is {coding[:60]!r}: send {', '.join(WINDOWS)} or identity"
        )
    declared = request.headers.get("content-length", "0")
    if int(declared) > max_bytes:  # the HTTP parser has refused all but digits
        raise BodyTooLarge(f"the body has {declared} bytes, the limit is {max_bytes}")
    body = await _whole(request, max_bytes, inference.bodies)
    return body if coding == "identity" else await _decompressed(body, coding, max_bytes, inference)


async def _decompressed(body: bytes, coding: str, max_bytes: int, inference: Inference) -> bytes:
    """A few bytes may stand for many: how many is known only on the way."""
    work = partial(decompressed, body, coding, max_bytes)
    plain = decompressed(body, coding, max_bytes, most=QUICK_BYTES)
    return await inference.aside(work) if plain is None else plain


async def _whole(request: Request, max_bytes: int, bodies: ByteBudget) -> bytes:
    body, more = await _piece(request, 0)
    if not more and len(body) <= max_bytes:
        return body  # as most come
    pieces, num_bytes = [body], len(body)
    with bodies.reserve(num_bytes) as reservation:
        while more and num_bytes <= max_bytes:
            body, more = await _piece(request, num_bytes)
            reservation.grow(len(body))
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
            f"{TIMEOUT_HEADER} is {sent[:60]!r}: a whole number of milliseconds, 1 to 999999999",
            param=TIMEOUT_HEADER,
        )
    return int(digits) / 1000


async def respond(request: Request, decode: Decode) -> Response:
    """What every inference route does between its own decode and encode. Expired or ClientGone between any two stages."""
    inference: Inference = request.app.state.inference
    context, deadline = request.state.context, begun(request)
    num_bytes, model = _num_bytes(request.headers), request.path_params.get("model")
    inference.scheduler.admit(deadline.timeout_s, context.key, num_bytes, model)
    body = await read_body(request, inference.settings.max_body_bytes)
    deadline.check()
    with watched(request, deadline):
        started = time.monotonic()
        with inference.bodies.reserve(len(body) if len(body) > QUICK_BYTES else 0):
            query, encode = await decode(
                RawRequest(body, request.headers, deadline, context), inference
            )
        del body
        query = query._replace(key=context.key)
        if query.timeout_s is not None and TIMEOUT_HEADER not in request.headers:
            deadline.timeout_s = query.timeout_s
        if coding := wanted_coding(request.headers):
            query, encode = query._replace(coding=coding), partial(_compressing, encode, coding)
        context.decoded_from, context.stages_s = started, {"decode": time.monotonic() - started}
        return await _answered(query, encode, inference, context)


def begun(request: Request) -> Deadline:
    """The request's deadline: its own, or the server's."""
    inference: Inference = request.app.state.inference
    context = request.state.context
    context.deadline = Deadline(timeout_s(request) or inference.settings.timeout_s, context.started)
    return context.deadline  # type: ignore[no-any-return]


@contextmanager
def watched(request: Request, deadline: Deadline) -> Iterator[None]:
    """Tells the deadline when the caller leaves. The body must have been read."""
    watch = Watch(partial(_left, request), deadline.leave)
    try:
        yield
    finally:
        watch.end()


async def _answered(
    query: InferenceRequest, encode: Encode, inference: Inference, context: Any
) -> Response:
    """The answer, and what is counted and told of it."""
    context.real_tokens, context.pad_tokens = query.batch.num_tokens, query.padding.num_pads
    statistics = query.model.statistics
    try:
        payload, stages_s = await inference.run(query, encode, context.deadline)
    except ServiceError:
        statistics.failed(time.monotonic() - context.decoded_from)
        raise
    context.stages_s |= stages_s
    statistics.answered(len(query.padding.lengths), context.stages_s)
    inference.metrics.inferred(
        context.model, context.real_tokens, context.pad_tokens, context.stages_s
    )
    timing = ", ".join(
        f"{stage};dur={seconds * 1000:.2f}" for stage, seconds in context.stages_s.items()
    )
    return PayloadResponse(payload, timing, inference.responses)


class Watch:
    """Calls `then` when the caller leaves. Begins after a while: quick requests never pay for it."""

    AFTER_S = 0.05

    def __init__(self, left: Callable[[], Awaitable[None]], then: Callable[[], object]) -> None:
        """left: returns when the caller has gone."""
        self._left, self._then = left, then
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(self.AFTER_S, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        await self._left()
        self._then()

    def end(self) -> None:
        self._timer.cancel()
        if self._task:
            self._task.cancel()


def _num_bytes(headers: Headers) -> float:
    """Of the body as it will be parsed, infinite where the head does not say."""
    declared = headers.get("content-length")
    return math.inf if declared is None or "content-encoding" in headers else int(declared)


def _compressing(encode: Encode, coding: str, answer: InferenceResponse) -> Steps[Payload]:
    plain = yield from encode(answer)
    parts = yield from compressed(plain.parts, coding)
    return Payload(parts, plain.media_type, {**plain.headers, "content-encoding": coding})


class PayloadResponse(Response):
    """Sends a payload part by part. A large one counts among the pending answers until its caller has taken it."""

    def __init__(self, payload: Payload, server_timing: str, responses: ByteBudget) -> None:
        self.payload, self.responses = payload, responses
        self.background, self.status_code = None, 200
        self.num_bytes = num_bytes = sum(map(len, payload.parts))
        headers = {
            **payload.headers,
            "content-type": payload.media_type,
            "content-length": str(num_bytes),
        }
        headers["server-timing"] = server_timing
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        if self.num_bytes <= HIGH_WATER_LIMIT:
            await _send(send, *self.payload.parts)
            return
        with self.responses.reserve(0) as reservation:
            reservation.keep(self.num_bytes)
            # the server takes the last part only once the caller has taken the others
            await _send(send, *self.payload.parts, b"")


async def _send(send: Send, *parts: bytes | memoryview) -> None:
    *others, last = chain.from_iterable(sliced(part, SENT_BYTES) for part in parts)
    for part in others:
        await send({"type": "http.response.body", "body": part, "more_body": True})
        await asyncio.sleep(
            0
        )  # a caller that reads quickly must not keep the event loop from others
    await send({"type": "http.response.body", "body": last})


def error_response(path: str, error: ServiceError) -> Response:
    """The envelope of every answer that is not a success: V2's words under /v2, OpenAI's elsewhere."""
    body: Any = error.message
    if not path.startswith("/v2"):
        body = {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.ends_connection:
        headers["connection"] = "close"
    return ErrorResponse(error, orjson.dumps({"error": body}), headers)


class ErrorResponse(Response):
    """Says to the log, too, what was wrong; a field only where its name is ours."""

    def __init__(self, error: ServiceError, body: bytes, headers: dict[str, str]) -> None:
        super().__init__(body, error.status, headers, JSON)
        self.code = error.code
        self.param = (error.param or "") if error.names_own_field else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = scope["state"]["context"]
        context.code, context.param = self.code, self.param
        await super().__call__(scope, receive, send)
