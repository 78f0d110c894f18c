"""The ASGI application: every request over HTTP, from its head to its report. Starlette's router
finds plain routes; FastAPI documents all.
"""

import asyncio
import logging
import math
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from pydantic_core import to_json
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from addnorm.service import VERSION
from addnorm.service.asking.ask import Ask
from addnorm.service.asking.gate import Gate
from addnorm.service.asking.readiness import Readiness
from addnorm.service.errors import Draining, TooManyConnections
from addnorm.service.server.auth import Entrance, Origins, named_origins
from addnorm.service.server.connection import wrong_head
from addnorm.service.server.error_response import error_response, note_error
from addnorm.service.server.table import Table
from addnorm.service.wire.codec import openapi
from addnorm.service.wire.codec.negotiation import JSON, slices
from addnorm.service.wire.route import ASK, Parts, PlainRoute, nothing_calls_it
from addnorm.service.wire.serving import answer
from addnorm.service.wire.telemetry.report import Reporter

log = logging.getLogger("addnorm")
SENT_BYTES = 256 * 1024  # of a response, handed to the socket at once
REQUEST_ID = re.compile(rb"[\w.:-]{1,128}")


class App:
    """A request passes its methods from top to bottom."""

    def __init__(
        self,
        table: Table,
        parts: Parts,
        entrance: Entrance,
        reporter: Reporter,
        paths: Mapping[tuple[str, str], str],
    ) -> None:
        """paths: method and path -> the path that is meant."""
        self._table, self._parts, self._entrance = table, parts, entrance
        self._reporter, self._paths = reporter, paths
        self._origins = Origins(parts.settings, entrance.keys)
        self.state = SimpleNamespace(parts=parts)  # for functions of plain routes
        self._router = _router(table)
        self._app = self._catch_errors(self._serve)
        if parts.settings.cors_origins:
            self._app = CORSMiddleware(
                self._app,
                allow_origins=named_origins(parts.settings),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],  # repeats those asked for: SDKs send headers of their own
                # Chrome asks before a page elsewhere calls this network
                allow_private_network=True,
                expose_headers=[
                    "retry-after", "server-timing", "x-addnorm-fingerprint", "x-addnorm-ignored",
                    "x-addnorm-model", "x-addnorm-scored", "x-addnorm-truncated",
                    "x-addnorm-windows", "x-request-id",
                ],
            )  # fmt: skip
        self.in_flight = 0
        # when the last request came, and when one was answered, that was no probe
        self.last_asked = self.last_answered = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begins the ask, and reports it at its end."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        sent = dict(reversed(scope["headers"]))  # of several equal names the first
        state = scope.setdefault("state", {})
        ask = state[ASK] = Ask(request_id(sent.get(b"x-request-id", b"")))
        ask.is_closing = state.get("is_closing")
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn leaves the body out
        if meant := self._paths.get((scope["method"], scope["path"])):
            scope = {**scope, "path": meant}
        is_probe = scope["path"].startswith(self._table.probes)
        if not is_probe:
            self.last_asked = ask.started

        gate, readiness = self._entrance.gate, self._parts.readiness
        is_open = self._table.scope(scope["method"], scope["path"]) is None
        sending = Sending(send, ask, gate, readiness, is_open)
        self.in_flight += 1
        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if not self._parts.readiness.draining:
                raise
            ask.note(Draining("the server ended before the answer was read"))
        finally:
            self.in_flight -= 1
            if not is_probe:
                self.last_answered = time.monotonic()
            self._reporter.report(scope, ask)
            del state[ASK]  # an idle connection must not keep the ask, and with it a model

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document of all routes. Takes a while, and memory for FastAPI."""
        # not `fastapi.FastAPI`: in its place OpenTelemetry's auto-instrumentation puts a class of
        # its own
        from fastapi.applications import FastAPI

        protocols = self._table.protocols
        app = FastAPI(
            title="Addnorm",
            description="Padded token batches with masks in, normalized activations and logits"
            " out. The same sequence gives the same bits, whatever the padding, whoever shares the"
            " batch.",
            version=VERSION,
            openapi_tags=[
                {"name": each.tag, "externalDocs": {"url": each.reference}}
                for each in protocols
                if each.reference
            ],
            openapi_url=None,
        )
        for protocol in protocols:
            for row in protocol.routes:
                options = row.documentation(protocol.errors)
                app.add_api_route(row.path, tags=[protocol.tag], **options)
        return openapi.document(app)

    def _catch_errors(self, app: ASGIApp) -> ASGIApp:
        """The application, and an answer to whatever it raises."""

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await app(scope, receive, send)
            except Exception as error:  # whatever it is, the caller gets a response
                if scope["type"] != "http":
                    raise
                ask: Ask = scope["state"][ASK]
                if ask.record.status is not None:
                    raise  # the response has begun: only the connection can be closed
                known = note_error(error, scope["method"], scope["path"], ask)
                envelope = ask.envelope or self._table.envelope(scope["path"])
                await error_response(envelope, known)(scope, receive, send)

        return call

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Rejects by the head: pages of other origins, what the connection found, callers who may
        not use the path, and those with too many requests under way. Then the row's answer is made
        and sent, or a plain route has the path."""
        ask: Ask = scope["state"][ASK]
        method, path = scope["method"], scope["path"]
        self._origins.check(scope)
        if scope["state"].get("is_surplus") and not path.startswith(self._table.probes):
            limit = self._parts.settings.max_connections
            why = f"{limit} connections are open, the limit; retry in 1 s"
            raise TooManyConnections(why, retry_after_s=1)
        if error := wrong_head(scope):
            raise error
        needed = self._table.scope(method, path)
        with self._entrance.enter(scope["headers"], needed, ask):
            own_path = path.removeprefix(scope.get("root_path", ""))
            match = self._table.find(own_path) if method == "POST" else None
            if match is None:
                scope["app"] = self
                await self._router(scope, receive, send)
                return
            scope["route"] = route = match[0]
            ask.route, ask.names = route.path, match[1]
            headers = {  # of several equal names the first
                name.decode("latin-1"): value.decode("latin-1")
                for name, value in reversed(scope["headers"])
            }
            payload = await answer(route, headers, receive, ask, self._parts)
            own = {
                **payload.headers,
                "content-type": payload.media_type,
                "content-length": str(sum(map(len, payload.parts))),
            }
            raw = [(name.encode(), value.encode()) for name, value in own.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            *others, last = payload.parts
            for part in others:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": last})


def request_id(sent: bytes) -> str:
    """The caller's, or a new one."""
    return sent.decode() if REQUEST_ID.fullmatch(sent) else f"{random.getrandbits(128):032x}"


@dataclass
class Sending:
    """Sends an answer with the request's id, and notes in the ask what was sent. A large one goes
    piece by piece, so that the connection sees whether its caller takes it. It counts as a pending
    response until then, unless it is open to all: all its readers share the same bytes."""

    send: Send
    ask: Ask
    gate: Gate
    readiness: Readiness
    is_open: bool
    is_large = False

    async def __call__(self, message: Message) -> None:
        """ResponsesFull instead of an answer that was made before it was counted."""
        ask, is_head = self.ask, message["type"] == "http.response.start"
        if is_head:
            num_bytes = int(dict(message["headers"]).get(b"content-length", b"0"))
            self.is_large = num_bytes > HIGH_WATER_LIMIT
            hold = self.gate.keep if ask.record.is_inferred else self.gate.hold
            hold(ask, "responses", num_bytes if self.is_large and not self.is_open else 0)
            ask.record.status = message["status"]
            added = [(b"x-request-id", ask.id.encode())]
            if self.readiness.draining:
                added.append((b"connection", b"close"))
            message["headers"] = [*message["headers"], *added]
        messages = [message]
        if self.is_large and not is_head:
            pieces = slices(message.get("body", b""), SENT_BYTES)
            messages = [{**message, "body": piece, "more_body": True} for piece in pieces]
            if not message.get("more_body", False):
                # the server accepts the last part only once the caller has taken the others
                messages.append({"type": "http.response.body", "body": b""})
        try:
            for each in messages:
                await self.send(each)
                if ask.record.first_byte_s is None and not is_head:
                    ask.record.first_byte_s = time.monotonic() - ask.started
                if each.get("more_body") and self.is_large:
                    # else a caller that reads quickly would keep the event loop from others
                    await asyncio.sleep(0)
        except RuntimeError:  # uvloop's, of a connection that was lost this moment
            if not (ask.is_closing and ask.is_closing()):
                raise


class ForOtherServers:
    """The application for an ASGI server that is not ours, which knows bytes only, and says that
    a caller has left to whoever receives: our own takes parts of a response as memoryviews, and
    tells the ask.

    Not there, as ASGI has no means for it: bounds on slow heads, on slow readers and on
    connections. The other server has its own.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving: asyncio.Task[None] | None = None

        async def sending(message: Message) -> None:
            body = message.get("body", b"")
            await send(message if isinstance(body, bytes) else {**message, "body": bytes(body)})

        async def receiving() -> Message:
            nonlocal leaving
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                leaving = asyncio.create_task(until_left())
            return message

        async def until_left() -> None:
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            except Exception:  # of any kind: the server itself has lost the caller
                log.warning(
                    "the ASGI server cannot report whether the caller is connected", exc_info=True
                )
            scope["state"][ASK].leave()

        if all(name != b"host" for name, _ in scope.get("headers", ())):
            # a head without it is the other server's to reject
            scope["headers"] = [*scope.get("headers", ()), (b"host", b"")]
        try:
            await self._app(scope, receiving, sending)
        finally:
            if leaving:
                leaving.cancel()


class _Served(StarletteRoute):
    """Tells the report its path, also where it does not serve the method."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        return match, {**child_scope, "route": self}


def _router(table: Table) -> Router:
    """Serves the plain routes, and tells which methods the others have. Errors pass through it."""
    return Router(
        [
            _Served(row.path, partial(_answer, row), methods=[row.method])
            if isinstance(row, PlainRoute)
            else _Served(row.path, nothing_calls_it, methods=["POST"])
            for protocol in table.protocols
            for row in protocol.routes
        ],
        redirect_slashes=False,  # to wherever the caller's Host header says
    )


async def _answer(row: PlainRoute, request: Request) -> Response:
    answer = await row.answer(request, **request.path_params)
    return answer if isinstance(answer, Response) else Response(to_json(answer), media_type=JSON)
