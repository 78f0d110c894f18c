"""What operators and orchestrators ask: alive, ready, how much."""

from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from service.errors import NotReady
from service.infer import Inference
from service.routes.openapi import NOT_READY

router = APIRouter()
swagger = StaticFiles(packages=[("fastapi_swagger", "resources")])


@router.get("/livez", summary="The process answers")
async def livez() -> dict[str, str]:
    return {"status": "alive"}


@router.get("/readyz", summary="Every model gives its canary's known answer", responses={503: NOT_READY})
async def readyz(request: Request) -> dict[str, str]:
    if request.state.draining:
        raise NotReady("the server is shutting down", retry_after_s=1)
    inference: Inference = request.app.state.inference
    await inference.ready()
    return {"status": "ready"}


@router.get("/metrics", summary="Counters and gauges for Prometheus", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    inference: Inference = request.app.state.inference
    return Response(inference.metrics.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/docs", include_in_schema=False)
async def docs() -> HTMLResponse:
    """Addresses are relative, so that the page works below any prefix, and in a network of its own."""
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Addnorm",
        swagger_js_url="swagger/swagger-ui-bundle.js",
        swagger_css_url="swagger/swagger-ui.css",
        swagger_favicon_url="swagger/favicon-32x32.png",
    )


@router.get("/", include_in_schema=False)
async def home() -> RedirectResponse:
    return RedirectResponse("/docs")
