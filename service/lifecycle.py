"""The edge of the application and its end: request ids, one log line and one count a request, and draining.

On SIGTERM the server is not ready at once, answers what it has accepted, refuses what comes, and closes the
listener last.
"""

import asyncio
import logging
import random
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import FrameType
from typing import Any, cast

import uvicorn
from opentelemetry.trace import Tracer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs, tracing
from service.connection import Connection, limited
from service.deadline import Deadline
from service.errors import NotReady, StartupError
from service.guard import HEALTH, PROBES
from service.keys import Keys
from service.metrics import Metrics
from service.routes.http import error_response
from service.settings import Settings

log = logging.getLogger("addnorm.access")
TICKS_PER_S = 10  # uvicorn's
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


@dataclass
class Facts:
    """What becomes known of a request on its way; logged and counted at its end. Never its content."""

    request_id: str
    started: float  # time.monotonic(): the deadline counts from here
    status: int = 500
    model: str = ""
    key: str = ""  # the name of the API key
    code: str = ""  # of an error
    param: str = ""  # the field that the error is about
    real_tokens: int = 0
    padded_tokens: int = 0
    deadline: Deadline | None = None  # where the request has one
    first_byte_s: float | None = None  # after it came; when the first bytes of the answer's body had been written
    stages_s: dict[str, float] = field(default_factory=dict)
    decoded_from: float = 0.0  # on time.monotonic(); the stages follow each other from there

    def times_ms(self) -> dict[str, float]:
        """Of the stages, and the deadline and the first byte, where they are known."""
        seconds = dict(self.stages_s)
        if self.first_byte_s is not None:
            seconds["first_byte"] = self.first_byte_s
        if self.deadline:
            seconds["timeout"] = self.deadline.timeout_s
        return {f"{name}_ms": round(value * 1000, 3) for name, value in seconds.items()}

    def spans(self) -> dict[str, tuple[float, float]]:
        """Each stage's start and end."""
        ends = list(accumulate(self.stages_s.values(), initial=self.decoded_from))
        return dict(zip(self.stages_s, pairwise(ends), strict=True))


class Edge:
    """Outermost ASGI application."""

    def __init__(self, app: ASGIApp, keys: Keys, metrics: Metrics, tracer: Tracer | None = None) -> None:
        self.app, self.keys, self.metrics, self.tracer = app, keys, metrics, tracer
        self.draining = False
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("x-request-id", "")
        request_id = sent if REQUEST_ID.fullmatch(sent) else f"{random.getrandbits(128):032x}"
        facts = scope.setdefault("state", {})["facts"] = Facts(request_id, time.monotonic())
        scope = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope  # uvicorn leaves the body away
        self.in_flight += 1
        try:
            await self._answer(scope, receive, self._marked(send, facts))
        finally:
            self.in_flight -= 1
            self._record(scope, facts)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["draining"] = self.draining
        if self.draining and not scope["path"].startswith(PROBES):
            refusal = NotReady("the server is shutting down: send it to another", retry_after_s=1)
            self.metrics.rejected("draining")
            await _read_away(receive)
            await error_response(scope["path"], refusal)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _marked(self, send: Send, facts: Facts) -> Send:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts.status = message["status"]
                added = [(b"x-request-id", facts.request_id.encode())]
                if self.draining:
                    added.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *added]
            await send(message)
            if facts.first_byte_s is None and message["type"] == "http.response.body":
                facts.first_byte_s = time.monotonic() - facts.started

        return marked

    def _record(self, scope: Scope, facts: Facts) -> None:
        route = getattr(scope.get("route"), "path", "unknown")  # the template: paths as they come have no bound
        seconds = time.monotonic() - facts.started
        self.metrics.answered(route, facts.model, facts.status, seconds)
        traced = self._traced(scope, route, facts)
        is_well = facts.status == 200 and scope["path"].startswith(HEALTH)  # asked every few seconds, by orchestrators
        level = logging.DEBUG if is_well else logging.INFO
        if not log.isEnabledFor(level):
            return
        known = {"key": facts.key, "code": facts.code, "field": facts.param}
        named = {name: value for name, value in known.items() if value}
        log.log(
            level,
            "request",
            extra={
                "facts": {
                    "request_id": facts.request_id, "method": scope["method"], "route": route, "status": facts.status,
                    "ms": round(seconds * 1000, 3), "model": facts.model, "real_tokens": facts.real_tokens,
                    "padded_tokens": facts.padded_tokens, **named, **facts.times_ms(), **traced,
                }
            },
        )  # fmt: skip

    def _traced(self, scope: Scope, route: str, facts: Facts) -> dict[str, str]:
        """Exports the request's spans, but for probes'. What the log says of it."""
        if not self.tracer or scope["path"].startswith(PROBES):
            return {}
        own: dict[str, str | int] = {"addnorm.request_id": facts.request_id}
        if facts.model:
            own |= {"addnorm.model": facts.model, "addnorm.real_tokens": facts.real_tokens}
            own |= {"addnorm.padded_tokens": facts.padded_tokens}
        return {"trace_id": tracing.record(self.tracer, scope, route, facts.status, own, facts.started, facts.spans())}


async def _read_away(receive: Receive) -> None:
    """Takes the body in, for a while: a connection closed while its caller still sends is reset, the answer lost."""
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            while (await receive()).get("more_body"):
                pass


def configured(edge: Edge, settings: Settings) -> uvicorn.Config:
    """uvicorn's options. StartupError if the certificate and its key do not fit."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise StartupError("one of ADDNORM_TLS_CERT and ADDNORM_TLS_KEY is set: set both, or none")
    config = uvicorn.Config(
        edge, host=settings.host, port=settings.port, http=cast(Any, limited(settings)), ws="none",
        log_config=None, access_log=False, server_header=False, headers=[("x-content-type-options", "nosniff")],
        proxy_headers=False, ssl_certfile=settings.tls_cert, ssl_keyfile=settings.tls_key,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # ssl.SSLError too
        raise StartupError(
            f"ADDNORM_TLS_CERT={settings.tls_cert}, ADDNORM_TLS_KEY={settings.tls_key}: {error}"
        ) from None
    return config


class Server(uvicorn.Server):
    """uvicorn, but a signal drains first, the process then ends with exit code 0, and slow callers are swept out."""

    def __init__(self, edge: Edge, settings: Settings) -> None:
        super().__init__(configured(edge, settings))
        self.edge, self.grace_s = edge, settings.grace_s
        self.drain_until = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.edge.draining and sig == signal.SIGINT:
            self.force_exit = self.should_exit = True  # an impatient second Ctrl+C
        elif not self.edge.draining:
            self.edge.draining = True
            self.drain_until = time.monotonic() + self.grace_s

    async def on_tick(self, counter: int) -> bool:
        logs.flush()
        if counter % TICKS_PER_S == 0:
            self.edge.keys.refresh()
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                cast(Connection, connection).sweep(now)
        if self.edge.draining and (self.edge.in_flight == 0 or time.monotonic() > self.drain_until):
            self.should_exit = True
        return await super().on_tick(counter)
