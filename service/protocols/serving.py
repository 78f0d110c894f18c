"""The story of one request to a row of the table: from its head to its answer."""

import math
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.types import Receive, Send

from addnorm.service.errors import InvalidInput
from addnorm.service.asking.request_path import Call
from addnorm.service.protocols.codec.bodies import held_bytes
from addnorm.service.protocols.codec.decoding import RawRequest, Tools
from addnorm.service.protocols.codec.negotiation import (
    JSON,
    Headers,
    negotiate,
    require_json,
    wanted_coding,
)
from addnorm.service.protocols.codec.payload import NO_HEADERS, Payload, compressing
from addnorm.service.protocols.route import Parts, Route
from addnorm.service.asking.deadline import Deadline
from addnorm.service.telemetry.request_context import RequestContext

ANSWER_BYTES = 64  # for each byte of a body, of which each may be a token
TIMEOUT_HEADER = "x-request-timeout-ms"
FINGERPRINT_HEADER = "x-addnorm-fingerprint"


async def answer(
    route: Route,
    names: Mapping[str, str],
    headers: Headers,
    receive: Receive,
    context: RequestContext,
    parts: Parts,
) -> Payload:
    """The encoded answer with all its headers. names: that the path has. ServiceError: what the
    caller is told instead; Expired or ClientGone between any two stages."""
    settings, path, holdings = parts.settings, parts.request_path, context.holdings
    deadline = begin_deadline(headers, context, settings.timeout_s)
    if route.infers:  # load shedding, by the head alone
        declared = headers.get("content-length")
        is_plain = declared is not None and "content-encoding" not in headers
        num_bytes = int(declared or 0) if is_plain else math.inf  # as it will be parsed
        path.pipeline.scheduler.check_load(
            deadline.timeout_s, holdings.key, num_bytes, names.get("model")
        )
    body = await parts.receiver.receive(headers, receive, context)
    deadline.check()
    anew = "no-cache" in headers.get("cache-control", "").lower()  # RFC 9111, 5.2.1.4
    call = Call(deadline, context, route.path, names, len(body), anew)
    context.decoded_from = time.monotonic()
    path.gate.hold(holdings, "bodies", held_bytes(body, headers))
    if not route.infers:  # the answer is counted as it is once it is sent
        num_made = ANSWER_BYTES * min(len(body), settings.max_tokens)
        path.gate.hold(holdings, "responses", num_made)
    made = await decode(route, RawRequest(body, headers), call, parts.tools)
    path.gate.hold(holdings, "bodies", 0)
    del body  # it must not be held while the answer is computed
    if not route.infers:
        payload = made if isinstance(made, Payload) else Payload([made])
        if (num := payload.num_bytes) > (limit := settings.max_response_bytes):
            raise InvalidInput(
                f"the answer has {num} bytes, the limit is {limit}"
                " (ADDNORM_MAX_RESPONSE_BYTES): send less at once"
            )
        return payload
    request, encode = made
    if coding := wanted_coding(headers):
        request = request._replace(coding=coding)
        encode = partial(compressing, encode, coding)
    payload, request = await path.answer(call, request, encode)
    times = payload.times(context.stages_s) if payload.times else NO_HEADERS
    own = {FINGERPRINT_HEADER: request.fingerprint, **server_timing(context.stages_s)}
    return payload._replace(headers={**payload.headers, **own, **times}, times=None)


async def decode(route: Route, raw: RawRequest, call: Call, tools: Tools) -> Any:
    """What the row's function makes of the body. InvalidInput names the field. On a shared path
    errors have the dialect's envelope once it is known."""
    found, body = route.decode, route.body
    if route.reads == "bytes":
        assert callable(found)
        return await found(raw, call, tools)
    if route.reads == "json":
        require_json(raw.headers)
    negotiate(raw.headers, (JSON,))
    if callable(found):
        return await found(await tools.bodies.read_json(body, raw.body, call.deadline), call, tools)
    value = await tools.bodies.read_object(raw.body, call.deadline)
    field = next((field for field in found if field in value), None)
    if field is None:
        raise InvalidInput(f"{' or '.join(found)} is missing: one of them tells the dialect")
    dialect = found[field]
    call.context.envelope = dialect.envelope
    asked = await tools.bodies.fit(dialect.body, value, len(raw.body), call.deadline)
    return await dialect.decode(asked, call, tools)


def begin_deadline(headers: Headers, context: RequestContext, timeout_s: float) -> Deadline:
    """The request's deadline: what its header says, or timeout_s."""
    sent = headers.get(TIMEOUT_HEADER)
    if sent is not None:
        digits = sent.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits)):
            raise InvalidInput(
                f"{TIMEOUT_HEADER} is {sent[:60]!r}: a whole number of milliseconds, 1 to"
                " 999999999",
                param=TIMEOUT_HEADER,
            )
        timeout_s = int(digits) / 1000
    context.deadline = Deadline(timeout_s, context.started, context.holdings)
    context.deadline.is_callers = sent is not None
    return context.deadline


def server_timing(stages_s: Mapping[str, float]) -> dict[str, str]:
    stages = (f"{stage};dur={seconds * 1000:.2f}" for stage, seconds in stages_s.items())
    return {"server-timing": ", ".join(stages)}


async def send_payload(payload: Payload, send: Send) -> None:
    """Part by part."""
    headers = {
        **payload.headers,
        "content-type": payload.media_type,
        "content-length": str(payload.num_bytes),
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})
    *others, last = payload.parts
    for part in others:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": last})
