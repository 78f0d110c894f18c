"""What connection.py does for our own server, done through ASGI alone: for all other servers.

Both tell the request's Deadline that the caller has left. Not here, as ASGI has no means for it:
bounds on slow heads, on slow readers and on connections. The other server has its own.
"""

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from addnorm.service.errors import RequestTimeout
from addnorm.service.server.http.head import wrong_head
from addnorm.service.settings import Settings
from addnorm.service.telemetry.request_context import RequestContext, attach_context

log = logging.getLogger("addnorm")


class ForOtherServers:
    """The application for an ASGI server that does not have our connections."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = attach_context(scope.setdefault("state", {}))
        target = scope.get("raw_path") or scope["path"].encode()
        context.head_error = wrong_head(
            target + scope.get("query_string", b""),
            scope["headers"],
            scope.get("http_version", "1.1"),
            self._settings,
        )
        caller = Caller(receive, context, self._settings.body_timeout_s)
        try:
            await self._app(scope, caller.receive, _sending_bytes(send))
        finally:
            caller.forget()


class Caller:
    """`receive` of one request, with a limit of time. Once the body is whole it waits for the
    caller to leave."""

    def __init__(self, receive: Receive, context: RequestContext, body_timeout_s: float) -> None:
        self._receive, self._context, self._body_timeout_s = receive, context, body_timeout_s
        self._until = asyncio.get_running_loop().time() + body_timeout_s
        self._leaving: asyncio.Task[Message] | None = None

    async def receive(self) -> Message:
        """RequestTimeout if the body takes too long."""
        if self._leaving:
            return await asyncio.shield(self._leaving)
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            limit_s = self._body_timeout_s
            raise RequestTimeout(f"the body did not arrive within {limit_s:g} s") from None
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._leaving = asyncio.create_task(self._wait_until_left())
        return message

    async def _wait_until_left(self) -> Message:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except Exception:  # of any kind: the server itself has lost the caller
            log.warning("the ASGI server cannot say whether the caller is there", exc_info=True)
        if self._context.deadline:
            self._context.deadline.leave()
        return {"type": "http.disconnect"}

    def forget(self) -> None:
        """The request has ended."""
        if self._leaving:
            self._leaving.cancel()


def _sending_bytes(send: Send) -> Send:
    """Our own server takes parts of a response as memoryviews. ASGI knows bytes only."""

    async def sending(message: Message) -> None:
        body = message.get("body", b"")
        await send(message if isinstance(body, bytes) else {**message, "body": bytes(body)})

    return sending
