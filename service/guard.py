"""The door: which path needs which scope, and who has a key for it. Knows no bodies."""

from contextlib import nullcontext

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import OutOfScope, ServiceError, TooManyConnections
from service.keys import Keys
from service.metrics import Metrics
from service.routes.http import error_response

OPEN = ("/livez", "/readyz", "/docs", "/openapi.json", "/")  # orchestrators carry no keys; the page tells nothing
NOTHING = nullcontext()
HEALTH = ("/livez", "/readyz", "/v2/health/")
PROBES = (*HEALTH, "/metrics")  # answered while full, and while draining
OPEN_BELOW = ("/v2/health/", "/swagger/")


def needed(path: str) -> str | None:
    """The scope that a path needs; None: open. What is not named here needs `infer`."""
    if path in OPEN or path.startswith(OPEN_BELOW):
        return None
    if path == "/metrics":
        return "metrics"
    if path.startswith("/v2/repository/") and path != "/v2/repository/index":  # Triton's clients list before they ask
        return "admin"
    return "infer"


class Guard:
    """ASGI: refuses what the connection found wrong with the head, and who has no key for the path."""

    def __init__(self, app: ASGIApp, keys: Keys, metrics: Metrics) -> None:
        self.app, self.keys, self.metrics = app, keys, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            refusal = scope["state"].get("refusal")
            if refusal and not (isinstance(refusal, TooManyConnections) and scope["path"].startswith(PROBES)):
                raise refusal
            wanted = needed(scope["path"]) if self.keys else None
            if wanted is None:
                await self.app(scope, receive, send)
                return
            key = self.keys.find(next((value for name, value in scope["headers"] if name == b"authorization"), b""))
            scope["state"]["facts"].key = key.name
            if wanted not in key.scopes:
                allowed = ", ".join(sorted(key.scopes))
                raise OutOfScope(f"the API key {key.name!r} is for {allowed}; this needs {wanted}")
            with self.keys.counted(key) if key.max_at_once else NOTHING:
                await self.app(scope, receive, send)
        except ServiceError as error:  # of this class: the application answers its own
            self.metrics.rejected(error.code)
            await error_response(scope["path"], error)(scope, receive, send)
