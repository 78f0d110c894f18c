"""For operators, orchestrators and people: probes, metrics, the documentation and the pages.

The pages are the playground, a model's certificate, and the files that they and /docs load. These
lie in service/page/, and those of /docs in a package. They are served as they are, and ask the same
routes as any client.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib import resources
from pathlib import Path

import orjson
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from addnorm.service.errors import NotFound
from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import PlainRoute, Protocol, parts_of


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
    """Made and written when first asked for, once for all that ask meanwhile. On a thread of its
    own: it takes longer than bodies may wait that are read."""
    app = request.app
    if not hasattr(app.state, "document"):
        making = asyncio.to_thread(lambda: orjson.dumps(app.openapi()))
        app.state.document = asyncio.ensure_future(making)
        app.state.documents_turn = asyncio.Lock()
    # one caller after another, so that the event loop does not answer all that waited in one round
    async with app.state.documents_turn:
        # a caller that leaves must not end it for the others
        content = await asyncio.shield(app.state.document)
    return Response(content, media_type=JSON)


async def docs(request: Request) -> HTMLResponse:
    return await parts_of(request).readers.call(_docs)


def _docs() -> HTMLResponse:
    """Addresses are relative, so that the page works below any prefix and without internet."""
    from fastapi.openapi.docs import get_swagger_ui_html  # takes a while to import

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
    return policy_headers(
        script_src=" ".join(["'self'", *hashes]),
        style_src="'self' 'unsafe-inline'",  # Swagger UI sets styles of its own
        img_src="'self' data:",
    )


def policy_headers(**policy: str) -> dict[str, str]:
    """Headers with this policy beside what holds for all pages."""
    directives = {
        "default-src": "'none'",
        **{name.replace("_", "-"): value for name, value in policy.items()},
        "connect-src": "'self'",
        **dict.fromkeys(("base-uri", "form-action", "frame-ancestors"), "'none'"),
    }
    return {
        "content-security-policy": "; ".join(
            f"{name} {value}" for name, value in directives.items()
        ),
        "referrer-policy": "no-referrer",
    }


FILES = Path(__file__).parents[1] / "page"
SWAGGER = "fastapi_swagger.resources"  # the package that has Swagger UI's files
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
HEADERS = {
    "cache-control": "no-cache",  # asked for again each time, and answered by 304
    **policy_headers(
        script_src="'self'",
        style_src="'self'",
        img_src="'self' blob:",  # a picture of an answer is drawn from a blob
        require_trusted_types_for="'script'",
        trusted_types="'none'",
    ),
}


@dataclass(frozen=True)
class Page:
    content: bytes
    media_type: str

    @cached_property
    def etag(self) -> str:
        return f'"{sha256(self.content).hexdigest()[:32]}"'

    def answer(self, request: Request, status: int = 200) -> Response:
        headers = {**HEADERS, "etag": self.etag}
        if status == 200 and request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, status, headers, self.media_type)


@cache
def _pages() -> Mapping[str, Page]:
    return _read(FILES)


@cache
def _swaggers() -> Mapping[str, Page]:
    return _read(Path(str(resources.files(SWAGGER))))


async def playground(request: Request) -> Response:
    return _pages()["playground.html"].answer(request)


async def page_file(request: Request, file: str) -> Response:
    """Scripts and styles."""
    return _page_answer(_pages(), request, file)


async def swagger_file(request: Request, file: str) -> Response:
    """Scripts, styles and pictures of /docs."""
    return _page_answer(_swaggers(), request, file)


async def certificate(request: Request, name: str) -> Response:
    """The script reads from its own address which model is meant, and asks for it."""
    return _below("../../", request, _status(request, name))


async def version_certificate(request: Request, name: str, version: str) -> Response:
    if b"%2f" in request.scope.get("raw_path", b"").lower():  # for a browser that is one name
        return _below("../../", request, 404)
    return _below("../../../", request, _status(request, f"{name}/{version}"))


def _status(request: Request, ref: str) -> int:
    """The page itself says in either case what there is. It is open, but who may not ask for
    models must not learn which are served."""
    parts = parts_of(request)
    try:
        if not parts.settings.needs_keys:
            parts.models.find(ref)
    except NotFound:
        return 404
    return 200


def _below(root: str, request: Request, status: int) -> Response:
    """Addresses are relative, so that the page works below any prefix."""
    page = _pages()["certificate.html"]
    content = page.content.replace(b'="./', f'="{root}'.encode())
    return Page(content, page.media_type).answer(request, status)


def _page_answer(pages: Mapping[str, Page], request: Request, file: str) -> Response:
    """A name is looked up among the files that were read."""
    if file not in pages or file.endswith(".html"):
        path = request.url.path[:80]
        raise NotFound(f"GET {path}: there is no such file; /docs lists all paths")
    return pages[file].answer(request)


def _read(folder: Path) -> Mapping[str, Page]:
    return {
        path.relative_to(folder).as_posix(): Page(path.read_bytes(), TYPES[path.suffix])
        for path in sorted(folder.rglob("*"))
        if path.suffix in TYPES
    }


ROUTES = (
    PlainRoute("/livez", livez, "The process answers, and can go on", OPENAI_ERRORS.only(503)),
    PlainRoute("/readyz", readyz, "Every model gives its known answer", OPENAI_ERRORS.only(503)),
    PlainRoute(
        "/metrics",
        metrics,
        "Counters and gauges for Prometheus",
        documented={"response_class": PlainTextResponse},
    ),
    PlainRoute("/openapi.json", document),
    PlainRoute("/docs", docs),
    PlainRoute("/", playground),
    PlainRoute("/page/{file:path}", page_file),
    PlainRoute("/swagger/{file:path}", swagger_file),
    PlainRoute("/models/{name}/certificate", certificate),
    PlainRoute("/models/{name}/{version}/certificate", version_certificate),
)
# orchestrators cannot say who they are, and the pages themselves hold nothing private: what they
# show they ask for in their reader's name
OPEN = (
    *("/livez", "/readyz", "/docs", "/openapi.json", "/swagger/*"),
    *("GET /", "/page/*", "/models/*"),
)
PROTOCOL = Protocol(
    tag="operations",
    routes=ROUTES,
    errors=OPENAI_ERRORS,
    scopes={**dict.fromkeys(OPEN), "/metrics": "metrics"},
    health=("/livez", "/readyz"),
    other_probes=("/metrics",),
)
