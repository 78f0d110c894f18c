"""What operators and orchestrators ask: alive, ready, how much."""

import re
from base64 import b64encode
from hashlib import sha256

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from addnorm.service.errors import NotReady
from addnorm.service.inference.pipeline import Inference
from addnorm.service.protocols.codec.negotiation import JSON
from addnorm.service.protocols.codec.openapi import NOT_READY

router = APIRouter()
swagger = StaticFiles(packages=[("fastapi_swagger", "resources")])


@router.get("/livez", summary="The process answers, and can go on", responses={503: NOT_READY})
async def livez(request: Request) -> dict[str, str]:
    inference: Inference = request.app.state.inference
    inference.alive()
    return {"status": "alive"}


@router.get("/readyz", summary="Every model gives its known answer", responses={503: NOT_READY})
async def readyz(request: Request) -> dict[str, str]:
    if request.state.draining:
        raise NotReady("the server is shutting down", retry_after_s=1)
    inference: Inference = request.app.state.inference
    await inference.ready()
    return {"status": "ready"}


@router.get(
    "/metrics", summary="Counters and gauges for Prometheus", response_class=PlainTextResponse
)
async def metrics(request: Request) -> Response:
    inference: Inference = request.app.state.inference
    return Response(
        await inference.aside(inference.metrics.render), media_type=CONTENT_TYPE_PLAIN_0_0_4
    )


@router.get("/openapi.json", include_in_schema=False)
async def document(request: Request) -> Response:
    """Made when first asked for, off the event loop: it takes a while."""
    inference: Inference = request.app.state.inference
    return Response(
        await inference.aside(lambda: orjson.dumps(request.app.openapi())), media_type=JSON
    )


@router.get("/docs", include_in_schema=False)
async def docs() -> HTMLResponse:
    """Addresses are relative, so that the page works below any prefix, and in a network of its own."""
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
    """The page may run its own scripts and this server's, ask this server alone, and be framed by nobody."""
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


@router.get("/", include_in_schema=False)
async def home() -> RedirectResponse:
    return RedirectResponse("/docs")
