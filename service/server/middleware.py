"""ASGI middleware: the context of each request and its report at the end, refusals while draining, and API keys."""

import asyncio
import logging
import random
import re
import time
from contextlib import nullcontext, suppress

from opentelemetry.trace import Tracer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from addnorm.service.errors import NotReady, OutOfScope, ServiceError, TooManyConnections
from addnorm.service.protocols.codec.bodies import error_response
from addnorm.service.server.auth import HEALTH, PROBES, Keys, needed
from addnorm.service.telemetry import tracing
from addnorm.service.telemetry.metrics import Metrics
from addnorm.service.telemetry.request_context import RequestContext

log = logging.getLogger("addnorm.access")
NOTHING = nullcontext()
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class RequestMiddleware:
    """Outermost ASGI application."""

    def __init__(
        self, app: ASGIApp, keys: Keys, metrics: Metrics, tracer: Tracer | None = None
    ) -> None:
        self.app, self.keys, self.metrics, self.tracer = app, keys, metrics, tracer
        self.draining = False
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("x-request-id", "")
        request_id = sent if REQUEST_ID.fullmatch(sent) else f"{random.getrandbits(128):032x}"
        context = scope.setdefault("state", {})["context"] = RequestContext(
            request_id, time.monotonic()
        )
        scope = (
            {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        )  # uvicorn leaves the body away
        self.in_flight += 1
        try:
            await self._answer(scope, receive, self._marked(send, context))
        finally:
            self.in_flight -= 1
            self._record(scope, context)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["draining"] = self.draining
        if self.draining and not scope["path"].startswith(PROBES):
            refusal = NotReady("the server is shutting down: send it to another", retry_after_s=1)
            self.metrics.rejected("draining")
            await _read_away(receive)
            await error_response(scope["path"], refusal)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _marked(self, send: Send, context: RequestContext) -> Send:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                added = [(b"x-request-id", context.request_id.encode())]
                if self.draining:
                    added.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *added]
            await send(message)
            if context.first_byte_s is None and message["type"] == "http.response.body":
                context.first_byte_s = time.monotonic() - context.started

        return marked

    def _record(self, scope: Scope, context: RequestContext) -> None:
        route = getattr(
            scope.get("route"), "path", "unknown"
        )  # the template: paths as they come have no bound
        seconds = time.monotonic() - context.started
        self.metrics.answered(route, context.model, context.status, seconds)
        traced = self._traced(scope, route, context)
        is_well = context.status == 200 and scope["path"].startswith(
            HEALTH
        )  # asked every few seconds, by orchestrators
        level = logging.DEBUG if is_well else logging.INFO
        if not log.isEnabledFor(level):
            return
        known = {"key": context.key, "code": context.code, "field": context.param}
        named = {name: value for name, value in known.items() if value}
        log.log(
            level,
            "request",
            extra={
                "request_id": context.request_id, "method": scope["method"], "route": route, "status": context.status,
                "ms": round(seconds * 1000, 3), "model": context.model, "real_tokens": context.real_tokens,
                "pad_tokens": context.pad_tokens, **named, **context.times_ms(), **traced,
            },
        )  # fmt: skip

    def _traced(self, scope: Scope, route: str, context: RequestContext) -> dict[str, str]:
        """Exports the request's spans, but for probes'. What the log says of it."""
        if not self.tracer or scope["path"].startswith(PROBES):
            return {}
        own: dict[str, str | int] = {"addnorm.request_id": context.request_id}
        if context.model:
            own |= {"addnorm.model": context.model, "addnorm.real_tokens": context.real_tokens}
            own |= {"addnorm.pad_tokens": context.pad_tokens}
        return {
            "trace_id": tracing.record(
                self.tracer, scope, route, context.status, own, context.started, context.spans()
            )
        }


async def _read_away(receive: Receive) -> None:
    """Takes the body in, for a while: a connection closed while its caller still sends is reset, the answer lost."""
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            while (await receive()).get("more_body"):
                pass


class AuthMiddleware:
    """ASGI: refuses what the connection found wrong with the head, and who has no key for the path."""

    def __init__(self, app: ASGIApp, keys: Keys, metrics: Metrics) -> None:
        self.app, self.keys, self.metrics = app, keys, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            refusal = scope["state"].get("refusal")
            if refusal and not (
                isinstance(refusal, TooManyConnections) and scope["path"].startswith(PROBES)
            ):
                raise refusal
            wanted = needed(scope["path"]) if self.keys else None
            if wanted is None:
                await self.app(scope, receive, send)
                return
            key = self.keys.find(
                next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            )
            scope["state"]["context"].key = key.name
            if wanted not in key.scopes:
                allowed = ", ".join(sorted(key.scopes))
                raise OutOfScope(f"the API key {key.name!r} is for {allowed}; this needs {wanted}")
            with self.keys.counted(key) if key.max_at_once else NOTHING:
                await self.app(scope, receive, send)
        except ServiceError as error:  # of this class: the application answers its own
            self.metrics.rejected(error.code)
            await error_response(scope["path"], error)(scope, receive, send)
