"""Routes for operators and orchestrators: alive, ready, metrics, and the API's documentation."""

import re
from base64 import b64encode
from hashlib import sha256

import orjson
from fastapi import Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, PlainTextResponse
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import FastApiRoute, parts_of


async def livez(request: Request) -> dict[str, str]:
    parts_of(request).readiness.check_alive()
    return {"status": "alive"}


async def readyz(request: Request) -> dict[str, str]:
    await parts_of(request).readiness.check()
    return {"status": "ready"}


async def metrics(request: Request) -> Response:
    parts = parts_of(request)
    text = await parts.readers.call(parts.exposition.render)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def document(request: Request) -> Response:
    """Made and written when first asked for, off the event loop: both take a while."""
    app = request.app
    if not hasattr(app.state, "document"):
        readers = parts_of(request).readers
        app.state.document = await readers.call(lambda: orjson.dumps(app.openapi()))
    return Response(app.state.document, media_type=JSON)


async def docs() -> HTMLResponse:
    """Addresses are relative, so that the page works below any prefix and without internet."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Addnorm",
        swagger_js_url="swagger/swagger-ui-bundle.js",
        swagger_css_url="swagger/swagger-ui.css",
        swagger_favicon_url="swagger/favicon-32x32.png",
    )
    page.headers.update(page_headers(bytes(page.body)))
    return page


def page_headers(page: bytes) -> dict[str, str]:
    """The page may run its own and this server's scripts and ask this server; no frames."""
    inline = re.findall(rb"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [f"'sha256-{b64encode(sha256(script).digest()).decode()}'" for script in inline]
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(["'self'", *hashes]),
        "style-src": "'self' 'unsafe-inline'",  # Swagger UI sets styles of its own
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "referrer-policy": "no-referrer",
    }


ROUTES = (
    FastApiRoute("/livez", livez, "The process answers, and can go on", OPENAI_ERRORS.only(503)),
    FastApiRoute("/readyz", readyz, "Every model gives its known answer", OPENAI_ERRORS.only(503)),
    FastApiRoute(
        "/metrics",
        metrics,
        "Counters and gauges for Prometheus",
        documented={"response_class": PlainTextResponse},
    ),
    FastApiRoute("/openapi.json", document),
    FastApiRoute("/docs", docs),
)
