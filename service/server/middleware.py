"""ASGI middleware in the order that requests pass it: context, errors, heads, API keys, large
answers."""

import asyncio
import math
import random
import re
import time
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from addnorm.service.errors import Draining
from addnorm.service.models.readiness import Readiness
from addnorm.service.protocols.codec.negotiation import sliced
from addnorm.service.protocols.protocol import Envelopes, Scopes
from addnorm.service.scheduling.gate import Gate
from addnorm.service.server.auth import Entrance
from addnorm.service.server.error_response import error_response, note_error
from addnorm.service.server.http.head import wrong_head
from addnorm.service.server.origins import Origins
from addnorm.service.telemetry.report import Reporter
from addnorm.service.telemetry.request_context import attach_context, context_of

REQUEST_ID = re.compile(rb"[\w.:-]{1,128}")
SENT_BYTES = 256 * 1024  # of a response, handed to the socket at once


class RequestMiddleware:
    """Outermost. Begins each request's context, and reports the request at its end."""

    def __init__(
        self,
        app: ASGIApp,
        reporter: Reporter,
        readiness: Readiness,
        paths: Mapping[tuple[str, str], str],
        probes: tuple[str, ...],
    ) -> None:
        """paths: method and path -> the path that is meant. probes: beginnings of paths that
        orchestrators ask."""
        self._app, self._reporter, self._readiness = app, reporter, readiness
        self._paths, self._probes = paths, probes
        self.in_flight = 0
        self.last_asked = -math.inf  # when the last request came that was no probe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = (value for name, value in scope["headers"] if name == b"x-request-id")
        context = attach_context(scope.setdefault("state", {}))
        context.request_id = request_id(next(sent, b""))
        context.started = time.monotonic()
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn leaves the body out
        if meant := self._paths.get((scope["method"], scope["path"])):
            scope = {**scope, "path": meant}
        if not scope["path"].startswith(self._probes):
            self.last_asked = context.started

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                added = [(b"x-request-id", context.request_id.encode())]
                if self._readiness.draining:
                    added.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *added]
            try:
                await send(message)
            except RuntimeError:  # uvloop's, of a connection that was lost this moment
                if not (context.is_closing and context.is_closing()):
                    raise
            if context.first_byte_s is None and message["type"] == "http.response.body":
                context.first_byte_s = time.monotonic() - context.started

        self.in_flight += 1
        try:
            await self._app(scope, receive, send_marked)
        except asyncio.CancelledError:
            if not self._readiness.draining:
                raise
            context.note(Draining("the server ended before the answer was taken"))
        finally:
            self.in_flight -= 1
            if context.leaving:
                context.leaving.cancel()
                context.leaving = None  # it holds the context, and with it the body
            self._reporter.report(scope, context)


def request_id(sent: bytes) -> str:
    """The caller's, or a new one."""
    return sent.decode() if REQUEST_ID.fullmatch(sent) else f"{random.getrandbits(128):032x}"


class ErrorMiddleware:
    """Answers whatever is raised below it."""

    def __init__(self, app: ASGIApp, envelopes: Envelopes) -> None:
        self._app, self._envelopes = app, envelopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:  # whatever it is, the caller gets a response
            if scope["type"] != "http" or (context := context_of(scope)).status is not None:
                raise  # the response has begun: only the connection can be closed
            known = note_error(error, scope["method"], scope["path"], context)
            envelope = context.envelope or self._envelopes.of(scope["path"])
            await error_response(envelope, known)(scope, receive, send)


class HeadMiddleware:
    """Rejects by the head alone: what the connection found, and pages of other origins."""

    def __init__(self, app: ASGIApp, origins: Origins, probes: tuple[str, ...]) -> None:
        """probes: beginnings of paths that orchestrators ask."""
        self._app, self._origins, self._probes = app, origins, probes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._origins.check(scope)
            is_probe = scope["path"].startswith(self._probes)
            surplus = None if is_probe else context_of(scope).surplus
            if error := surplus or wrong_head(scope):
                raise error
        await self._app(scope, receive, send)


class AuthMiddleware:
    """Rejects callers without a key for the path, and keys with too many requests under way."""

    def __init__(self, app: ASGIApp, entrance: Entrance, scopes: Scopes) -> None:
        self._app, self._entrance, self._scopes = app, entrance, scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        needed = self._scopes.needed(scope["method"], scope["path"])
        with self._entrance.enter(scope["headers"], needed, context_of(scope)):
            await self._app(scope, receive, send)


class SendingMiddleware:
    """Sends large answers piece by piece, and counts each as a pending response until its caller
    has taken it. What is open to all does not count: all its readers share the same bytes."""

    def __init__(self, app: ASGIApp, gate: Gate, scopes: Scopes) -> None:
        self._app, self._gate, self._scopes = app, gate, scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = context_of(scope)
        is_counted = False

        async def send_counted(message: Message) -> None:
            """ResponsesFull instead of an answer that was made before it was counted."""
            nonlocal is_counted
            if message["type"] == "http.response.start":
                sizes = (value for name, value in message["headers"] if name == b"content-length")
                num_bytes = int(next(sizes, b"0"))
                is_counted = num_bytes > HIGH_WATER_LIMIT and bool(
                    self._scopes.needed(scope["method"], scope["path"])
                )
                hold = self._gate.keep if context.is_inferred else self._gate.hold
                hold(context.holdings, "responses", num_bytes if is_counted else 0)
                await send(message)
            elif not is_counted:
                await send(message)
            else:
                for piece in sliced(message.get("body", b""), SENT_BYTES):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    # else a caller that reads quickly would keep the event loop from others
                    await asyncio.sleep(0)
                if not message.get("more_body", False):
                    # the server accepts the last part only once the caller has taken the others
                    await send({"type": "http.response.body", "body": b""})

        await self._app(scope, receive, send_counted)
