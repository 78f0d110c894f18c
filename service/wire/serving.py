"""The story of one request to a row of the table: from its head to its answer."""

import asyncio
import math
import time
from functools import partial
from typing import Any

from starlette.types import Receive

from addnorm.service.asking.answer import QUICK_BYTES
from addnorm.service.asking.ask import Ask
from addnorm.service.errors import (
    BodyTooLarge,
    ClientGone,
    InvalidInput,
    RequestTimeout,
    UnsupportedMediaType,
)
from addnorm.service.wire.codec.decoding import RawRequest, held_bytes
from addnorm.service.wire.codec.foreign_fields import header_value
from addnorm.service.wire.codec.negotiation import (
    JSON,
    SAME_CODINGS,
    WINDOWS,
    Headers,
    negotiate,
    sent_type,
    wanted_coding,
)
from addnorm.service.wire.codec.payload import Payload, compressing
from addnorm.service.wire.codec.validation import parse
from addnorm.service.wire.route import Parts, Route
from addnorm.service.wire.tools import Tools

ANSWER_BYTES = 64  # for each byte of a body, of which each may be a token
TIMEOUT_HEADER = "x-request-timeout-ms"
MAX_TIME_HEADER = "x-max-time-ms"
FINGERPRINT_HEADER = "x-addnorm-fingerprint"
WINDOWS_HEADER = "x-addnorm-windows"  # how many texts were read in that are longer, if any are
TRUNCATED_HEADER = "x-addnorm-truncated"  # how many texts were cut, if any were
MODEL_HEADER = "x-addnorm-model"  # what answers, where the request names a model that is not served
IGNORED_HEADER = "x-addnorm-ignored"  # names of the body's fields that no body here has, if any


async def answer(
    route: Route, headers: Headers, receive: Receive, ask: Ask, parts: Parts
) -> Payload:
    """The encoded answer with all its headers. ServiceError: what the caller is told instead;
    Expired or ClientGone between any two stages."""
    settings, gate = parts.settings, parts.answers.gate
    ask.ignored = None if route.is_ours else []
    ask.timeout_s, ask.is_callers = settings.timeout_s, TIMEOUT_HEADER in headers
    if ask.is_callers:
        ask.timeout_s = seconds_of(headers, TIMEOUT_HEADER)
    if MAX_TIME_HEADER in headers:
        ask.max_time_s = seconds_of(headers, MAX_TIME_HEADER)
    ask.anew = "no-cache" in headers.get("cache-control", "").lower()  # RFC 9111, 5.2.1.4
    if route.infers and gate.shedding:  # by the head alone; read without the lock that guards it
        declared = headers.get("content-length")
        is_plain = declared is not None and "content-encoding" not in headers
        num_bytes = int(declared or 0) if is_plain else math.inf  # as it will be parsed
        with parts.answers.scheduler.changed:
            gate.check_load(ask, num_bytes)
    body = await receive_body(headers, receive, ask, parts)
    ask.check()
    ask.record.decoded_from, ask.num_body_bytes = time.monotonic(), len(body)
    # small ones do not count
    gate.hold(ask, "bodies", held_bytes(body, headers) if len(body) > QUICK_BYTES else 0)
    if not route.infers:  # the answer is counted as it is once it is sent
        num_made = ANSWER_BYTES * min(len(body), settings.max_tokens)
        gate.hold(ask, "responses", num_made)
    product = await decode(route, RawRequest(body, headers), ask, parts.tools)
    gate.hold(ask, "bodies", 0)
    del body  # it must not be held while the answer is computed
    if not route.infers:
        reply = product if isinstance(product, Payload) else Payload([product])
        if (num := sum(map(len, reply.parts))) > (limit := settings.max_response_bytes):
            raise InvalidInput(
                f"the answer has {num} bytes, the limit is {limit}"
                " (ADDNORM_MAX_RESPONSE_BYTES): send less at once"
            )
        extra_headers = _changes(ask) if ask.cut or ask.ignored or ask.is_substitute else {}
        return reply._replace(headers={**reply.headers, **extra_headers})
    ask.encode = product
    if coding := wanted_coding(headers):
        ask.coding, ask.encode = coding, partial(compressing, product, coding)
    del product
    payload: Payload = await parts.answers.answer(ask)
    ask_headers = headers_of(ask)
    if payload.times:
        ask_headers |= payload.times(ask)
    ask.forget()
    return payload._replace(headers={**payload.headers, **ask_headers}, times=None)


def seconds_of(headers: Headers, name: str) -> float:
    """InvalidInput for a header that is no whole number of milliseconds."""
    sent = headers[name]
    digits = sent.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits)):
        raise InvalidInput(
            f"{name} is {sent[:60]!r}: a whole number of milliseconds, 1 to 999999999", param=name
        )
    return int(digits) / 1000


async def receive_body(headers: Headers, receive: Receive, ask: Ask, parts: Parts) -> bytes:
    """The body, decompressed, within bounds of size, of time, and of the bytes that all hold
    together: rejected as soon as it is known to be over one."""
    settings, gate = parts.settings, parts.answers.gate
    max_bytes, limit_s = settings.max_body_bytes, settings.body_timeout_s
    coding = headers.get("content-encoding", "identity").strip().lower()
    coding = SAME_CODINGS.get(coding, coding)
    if coding not in ("identity", *WINDOWS):
        raise UnsupportedMediaType(
            f"Content-Encoding is {coding[:60]!r}: send {', '.join(WINDOWS)} or identity"
        )
    declared = headers.get("content-length", "0")
    if int(declared) > max_bytes:  # the HTTP parser has rejected all but digits
        raise BodyTooLarge(f"the body has {declared} bytes, the limit is {max_bytes}")
    if int(declared) > QUICK_BYTES:  # reject it before it is sent, if it has no space now
        gate.hold(ask, "bodies", int(declared))
        gate.hold(ask, "bodies", 0)
    pieces, num_bytes, has_more = list[bytes](), 0, True
    try:
        async with asyncio.timeout(limit_s):
            while has_more and num_bytes <= max_bytes:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone(f"the caller left after {num_bytes} bytes of the body")
                pieces.append(message.get("body", b""))
                num_bytes, has_more = num_bytes + len(pieces[-1]), message.get("more_body", False)
                if has_more or len(pieces) > 1:  # most come whole, and count once they are read
                    gate.hold(ask, "bodies", num_bytes)
    except TimeoutError:
        raise RequestTimeout(f"the body did not arrive within {limit_s:g} s") from None
    if num_bytes > max_bytes:
        raise BodyTooLarge(f"the body has more than {max_bytes} bytes, the limit")
    body = b"".join(pieces)
    del pieces, message  # the body alone is held
    return body if coding == "identity" else await parts.tools.bodies.plain(body, coding, ask)


async def decode(route: Route, raw: RawRequest, ask: Ask, tools: Tools) -> Any:
    """The product of the row's function of the body: see `Decode`. InvalidInput names the field. On
    a shared path errors have the dialect's envelope once it is known."""
    decoder, kind, bodies = route.decode, route.body, tools.bodies
    if route.reads == "bytes":
        assert callable(decoder)
        return await decoder(raw, ask, tools)
    if route.reads == "json" and (media_type := sent_type(raw.headers)) != JSON:
        raise UnsupportedMediaType(f"Content-Type is {media_type!r}: send {JSON}")
    negotiate(raw.headers, (JSON,))
    arguments = raw.body, bodies.settings, route.keeps_nulls
    value = await bodies.read(len(raw.body), ask, parse, *arguments)
    if not callable(decoder):
        field = next((field for field in decoder if field in value), None)
        if field is None:
            raise InvalidInput(f"{' or '.join(decoder)} is missing: one of them tells the dialect")
        kind, ask.envelope, decoder = decoder[field]
    body = await bodies.fit(kind, value, ask, len(raw.body))
    del value  # it must not be held beside what was made of it
    return await decoder(body, ask, tools)


def headers_of(ask: Ask) -> dict[str, str]:
    """Headers of what computed the answer, how long each stage took, how many texts were scored,
    and what was done otherwise than asked."""
    stages = (f"{stage};dur={seconds * 1000:.2f}" for stage, seconds in ask.record.stages_s.items())
    fingerprint = ask.engine.fingerprint.digest
    headers = {FINGERPRINT_HEADER: fingerprint, "server-timing": ", ".join(stages)}
    if ask.cut or ask.ignored or ask.is_substitute:
        headers |= _changes(ask)
    if ask.num_windows:
        headers[WINDOWS_HEADER] = str(ask.num_windows)
    if ask.scored:
        headers["x-addnorm-scored"] = "{}/{}".format(*ask.scored)
    return headers


def _changes(ask: Ask) -> dict[str, str]:
    """Ends of texts and fields that were left out, and a model in place of the one named."""
    headers = {TRUNCATED_HEADER: str(len(ask.cut))} if ask.cut else {}
    if ask.is_substitute:
        headers[MODEL_HEADER] = ask.model.bundle.ref
    return headers | ({IGNORED_HEADER: header_value(ask.ignored)} if ask.ignored else {})
