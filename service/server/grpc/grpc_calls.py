"""Calls over gRPC, through the same stations as requests over HTTP: context, errors, head, API
keys, deadline. Knows no protobuf.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.kserve.over_grpc.grpc_methods import GrpcMethod
from addnorm.service.errors import (
    BodyTooLarge,
    ClientGone,
    Draining,
    Overloaded,
    RequestTimeout,
    ServiceError,
)
from addnorm.service.server.accepted import AcceptedConnections
from addnorm.service.server.app import request_id
from addnorm.service.server.auth import Entrance, Headers
from addnorm.service.server.connection import wrong_head
from addnorm.service.server.error_response import note_error, retry_after
from addnorm.service.wire.route import Parts
from addnorm.service.wire.telemetry.report import Reporter

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
TIMER_S = 0.05  # a caller's deadline may pass so much earlier by the caller's own clock
# A message that takes longer to arrive counts as the largest meanwhile: gRPC does not tell how much
# of it has come. Larger: more bytes come uncounted. Smaller: callers far away are counted for more.
QUICK_S = 0.05
PROBE_S = 1.0  # a probe has so long to send its message, and to take the answer


class Caller(Protocol):
    """The part of grpc.aio.ServicerContext that is used."""

    def peer(self) -> str: ...
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
    quick_s: float = QUICK_S
    probe_s: float = PROBE_S
    in_flight: int = field(default=0, init=False)  # probes too
    num_begun: int = field(default=0, init=False)
    # when the last call came, and when one ended, that was no probe
    last_asked: float = field(default=-math.inf, init=False)
    last_answered: float = field(default=-math.inf, init=False)
    # while callers are told to leave their connections, calls wait for it, so that few more come
    farewell: asyncio.Event | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.connections = AcceptedConnections(self.parts.settings.max_connections)
        self._is_reading_probe = False

    async def answer(self, method: GrpcMethod, caller: Caller) -> None:
        headers = [
            (name.encode(), value.encode() if isinstance(value, str) else value)
            for name, value in caller.invocation_metadata() or ()
        ]
        ask = Ask(request_id(dict(headers).get(b"x-request-id", b"")), method.path)
        self.in_flight += 1
        self.num_begun += 1
        try:
            head = {"path": method.path, "headers": headers, "http_version": "2"}
            if error := wrong_head(head):
                raise error
            if self.farewell:
                await self.farewell.wait()
            if method.is_probe:
                with self.entrance.enter(headers, None, ask):
                    await self._respond(method, self._receive_probe, caller, headers, ask)
            else:
                self.last_asked = time.monotonic()
                if self.farewell:
                    raise Draining(
                        "the server is shutting down: send the request to another", retry_after_s=1
                    )
                with (
                    self.entrance.enter(headers, "infer", ask),
                    self.connections.calling(caller.peer()),
                ):
                    self.entrance.gate.hold(ask, "calls", 1)
                    await self._respond(method, self._receive, caller, headers, ask)
            ask.record.status = 200
        except asyncio.CancelledError:
            # gRPC has ended the call: its caller left, its time is up, or the server ends
            ending: ServiceError = ClientGone("the caller left before the answer")
            if self.parts.readiness.draining:
                ending = Draining("the server ended before the answer was read")
            if ask.started + ask.timeout_s - time.monotonic() < TIMER_S:
                ending = ask.expiry()
            ask.leave()  # ends what other threads do for it
            ask.note(ending)
            ask.record.status = ending.status
            raise
        except Exception as error:  # whatever it is, the caller gets a status
            await self._abort(method, caller, error, ask)
        finally:
            self.in_flight -= 1
            if not method.is_probe:
                self.last_answered = time.monotonic()
            # the call as a request over HTTP/2, which it is
            scope = {"method": "POST", "path": method.path, "route": method, "scheme": "http"}
            self.reporter.report({**scope, "http_version": "2", "headers": headers}, ask)

    async def _respond(
        self,
        method: GrpcMethod,
        receive: Callable[[Caller, Ask], Awaitable[bytes]],
        caller: Caller,
        headers: Headers,
        ask: Ask,
    ) -> None:
        async def receive_body() -> bytes:
            body = await receive(caller, ask)
            if not isinstance(body, bytes):  # gRPC has ended the call, or the caller has
                raise ClientGone("the call ended before its message, or its message is too large")
            limit = method.max_bytes or settings.max_body_bytes
            if len(body) > limit:
                raise BodyTooLarge(f"the message has {len(body)} bytes, the limit is {limit}")
            return body

        settings, left_s = self.parts.settings, caller.time_remaining()
        timeout_s = settings.timeout_s if left_s is None else min(left_s, MAX_TIMEOUT_S)
        ask.timeout_s, ask.is_callers = timeout_s, left_s is not None
        ask.anew = b"no-cache" in dict(headers).get(b"cache-control", b"").lower()
        answer = await method.answer(self.parts, receive_body, ask)
        caller.set_trailing_metadata(_metadata(ask, **answer.metadata))
        # a pending response until it is sent
        self.entrance.gate.keep(ask, "responses", len(answer.message))
        limit_s = self.probe_s if method.is_probe else settings.send_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await caller.write(answer.message)
        except TimeoutError:
            raise ClientGone(f"the answer was not read within {limit_s:g} s") from None

    async def _receive(self, caller: Caller, ask: Ask) -> Any:
        """Overloaded if it is slow and there is no space for it."""
        settings, loop = self.parts.settings, asyncio.get_running_loop()
        gate = self.entrance.gate
        full: list[Overloaded] = []

        def count() -> None:
            try:
                gate.hold(ask, "bodies", settings.max_body_bytes)
            except Overloaded as error:
                full.append(error)
                timeout.reschedule(loop.time())

        counting = loop.call_later(self.quick_s, count)
        try:
            async with asyncio.timeout(settings.body_timeout_s) as timeout:
                return await caller.read()
        except TimeoutError:
            raise full.pop() if full else _late(settings.body_timeout_s) from None
        finally:
            counting.cancel()
            gate.hold(ask, "bodies", 0)

    async def _receive_probe(self, caller: Caller, ask: Ask) -> Any:
        """A probe may be as large as any, so one is received at a time: others meanwhile count
        as empty, and so ask for the whole server."""
        if self._is_reading_probe:
            return b""
        self._is_reading_probe = True
        try:
            async with asyncio.timeout(self.probe_s):
                return await caller.read()
        except TimeoutError:
            raise _late(self.probe_s) from None
        finally:
            self._is_reading_probe = False

    async def _abort(self, method: GrpcMethod, caller: Caller, error: Exception, ask: Ask) -> None:
        import grpc

        has_ended = caller.done() or isinstance(error, grpc.aio.BaseError)
        if has_ended and not isinstance(error, ServiceError):  # no fault of the server
            error = ClientGone("the call ended before the answer")
        service_error = note_error(error, "POST", method.path, ask)
        ask.record.status = service_error.status
        metadata = _metadata(ask)
        if (seconds := retry_after(service_error)) is not None:
            # the second is gRPC's own, for clients that retry by themselves
            pushback = ("grpc-retry-pushback-ms", str(math.ceil(seconds * 1000)))
            metadata = (*metadata, ("retry-after", str(seconds)), pushback)
        code = getattr(grpc.StatusCode, CODES.get(service_error.status, "INTERNAL"))
        with suppress(grpc.aio.InternalError):  # the call has ended, so nobody can be told
            await caller.abort(code, service_error.message, metadata)


def _late(limit_s: float) -> RequestTimeout:
    return RequestTimeout(f"the message did not arrive within {limit_s:g} s")


def _metadata(ask: Ask, **trailers: str) -> tuple[tuple[str, str], ...]:
    return (("x-request-id", ask.id), *trailers.items())
