"""Calls over gRPC, through the same stations as requests over HTTP: context, errors, head, API
keys, deadline. Knows no protobuf.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from addnorm.service.errors import (
    ClientGone,
    Draining,
    RequestTimeout,
    ServiceError,
    TooManyConnections,
)
from addnorm.service.inference.request_path import Call
from addnorm.service.protocols.kserve.over_grpc.grpc_methods import Answer, GrpcMethod
from addnorm.service.protocols.protocol import Parts
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.server.auth import Entrance, Headers
from addnorm.service.server.error_response import noted, retry_after
from addnorm.service.server.middleware import request_id
from addnorm.service.telemetry.report import Reporter
from addnorm.service.telemetry.request_context import RequestContext

# names of grpc.StatusCode by the status that the same error has over HTTP
CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
MAX_TIMEOUT_S = 1e6  # as over HTTP
MAX_CHARACTERS = 2000  # of an error's words: they travel in a head, which clients limit
TIMER_S = 0.05  # a caller's deadline may pass so much earlier by the caller's own clock


class Caller(Protocol):
    """What is used of grpc.aio.ServicerContext."""

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None: ...
    def time_remaining(self) -> float | None: ...
    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str]]) -> None: ...
    def done(self) -> bool: ...
    async def read(self) -> Any: ...
    async def write(self, message: bytes) -> None: ...
    async def abort(self, code: Any, details: str, metadata: Any) -> None: ...


@dataclass
class GrpcCalls:
    """Answers calls."""

    parts: Parts
    entrance: Entrance
    reporter: Reporter
    in_flight: int = 0
    num_begun: int = 0
    # while callers are told to leave their connections, calls wait for it, so that few more come
    told: asyncio.Event | None = None

    async def answer(self, method: GrpcMethod, caller: Caller) -> None:
        headers = _headers(caller)
        context = RequestContext(request_id(dict(headers).get(b"x-request-id", b"")))
        self.in_flight += 1
        self.num_begun += 1
        try:
            if self.told:
                await self.told.wait()
            await self._answer(method, caller, headers, context)
            context.status = 200
        except asyncio.CancelledError:
            self._note_end(context)
            raise
        except Exception as error:  # whatever it is, the caller gets a status
            known = noted(_of_lost(error, caller), "POST", method.path, context)
            context.status = known.status
            await abort(caller, known, context)
        finally:
            self.in_flight -= 1
            self.reporter.report(_scope(method, headers), context)

    def allows(self, caller: Caller) -> bool:
        """Whether the caller's key may ask for inferences."""
        return self.entrance.allows(_headers(caller), "infer")

    async def _answer(
        self, method: GrpcMethod, caller: Caller, headers: Headers, context: RequestContext
    ) -> None:
        if not method.is_probe:
            self._check_head()
        needed = None if method.is_probe else "infer"
        with await self.entrance.enter(headers, needed, context, method.is_probe):
            context.deadline = self._deadline(caller, context)
            anew = b"no-cache" in dict(headers).get(b"cache-control", b"").lower()
            call = Call(context.deadline, context, route=method.path, anew=anew)
            answer = await method.answer(partial(self._receive, caller), call)
            await self._send(caller, answer, context)

    def _check_head(self) -> None:
        self.parts.readiness.check_open()
        limit = self.parts.settings.max_connections
        if self.in_flight > limit:
            raise TooManyConnections(
                f"{limit} calls over gRPC are under way, the limit; retry in 1 s", retry_after_s=1
            )

    def _deadline(self, caller: Caller, context: RequestContext) -> Deadline:
        left_s = caller.time_remaining()
        timeout_s = self.parts.settings.timeout_s if left_s is None else min(left_s, MAX_TIMEOUT_S)
        deadline = Deadline(timeout_s, context.started, context.key)
        deadline.is_callers = left_s is not None
        return deadline

    async def _receive(self, caller: Caller) -> bytes:
        """The call's message."""
        limit_s = self.parts.settings.body_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                body = await caller.read()
        except TimeoutError:
            raise RequestTimeout(f"the message did not arrive within {limit_s:g} s") from None
        if not isinstance(body, bytes):  # gRPC has ended the call, or the caller has
            raise ClientGone("the call ended before its message, or its message is too large")
        return body

    async def _send(self, caller: Caller, answer: Answer, context: RequestContext) -> None:
        """Counts as a pending response until it is sent."""
        caller.set_trailing_metadata(_metadata(context, **answer.metadata))
        with self.parts.request_path.pipeline.responses.reserve(0, context.key) as reservation:
            reservation.keep(len(answer.message))
            await sent_in_time(caller, answer.message, self.parts.settings.send_timeout_s)

    def _note_end(self, context: RequestContext) -> None:
        """gRPC has ended the call: its caller left, its time is up, or the server ends."""
        error: ServiceError = ClientGone("the caller left before the answer")
        if self.parts.readiness.draining:
            error = Draining("the server ended before the answer was taken")
        if deadline := context.deadline:
            if deadline.left_s() < TIMER_S:
                error = deadline.expired()
            deadline.leave()  # ends steps that other threads do for it
        context.note(error)
        context.status = error.status


async def sent_in_time(caller: Caller, message: bytes, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await caller.write(message)
    except TimeoutError:
        raise ClientGone(f"the answer was not taken within {limit_s:g} s") from None


def _headers(caller: Caller) -> Headers:
    sent = caller.invocation_metadata() or ()
    return [
        (name.encode(), value.encode() if isinstance(value, str) else value) for name, value in sent
    ]


def _of_lost(error: Exception, caller: Caller) -> Exception:
    """What gRPC raises for a call that has ended is no fault of the server."""
    is_lost = caller.done() and not isinstance(error, ServiceError)
    return ClientGone("the call ended before the answer") if is_lost else error


async def abort(caller: Caller, error: ServiceError, context: RequestContext) -> None:
    import grpc

    metadata = _metadata(context)
    if (seconds := retry_after(error)) is not None:
        # the second is gRPC's own, for clients that retry by themselves
        pushback = ("grpc-retry-pushback-ms", str(math.ceil(seconds * 1000)))
        metadata = (*metadata, ("retry-after", str(seconds)), pushback)
    code = getattr(grpc.StatusCode, CODES.get(error.status, "INTERNAL"))
    await caller.abort(code, error.message[:MAX_CHARACTERS], metadata)


def _metadata(context: RequestContext, **more: str) -> tuple[tuple[str, str], ...]:
    return (("x-request-id", context.request_id), *more.items())


def _scope(method: GrpcMethod, headers: Headers) -> dict[str, Any]:
    """The call as a request over HTTP/2, which it is, for the report."""
    return {
        "method": "POST",
        "path": method.path,
        "route": method,
        "scheme": "http",
        "http_version": "2",
        "headers": headers,
    }
