"""The application for an ASGI server that is not ours.

Not there, as ASGI has no means for it: bounds on slow heads, on slow readers and on connections.
The other server has its own.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ForOtherServers:
    """Our own server takes parts of a response as memoryviews. ASGI knows bytes only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            body = message.get("body", b"")
            await send(message if isinstance(body, bytes) else {**message, "body": bytes(body)})

        await self._app(scope, receive, sending)
