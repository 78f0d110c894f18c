"""The pages for people: the playground, a model's certificate, and the files that they and /docs
load.

The files lie in service/page/, and those of /docs in a package. They are served as they are, and
ask the same routes as any client.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib import resources
from pathlib import Path

from fastapi import Request, Response

from addnorm.service.errors import NotFound
from addnorm.service.wire.route import FastApiRoute, parts_of

FILES = Path(__file__).parents[2] / "page"
SWAGGER = "fastapi_swagger.resources"  # the package that has Swagger UI's files
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' blob:",  # a picture of an answer is drawn from a blob
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
HEADERS = {
    "cache-control": "no-cache",  # asked for again each time, and answered by 304
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "referrer-policy": "no-referrer",
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
    return _found(_pages(), request, file)


async def swagger_file(request: Request, file: str) -> Response:
    """Scripts, styles and pictures of /docs."""
    return _found(_swaggers(), request, file)


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


def _found(pages: Mapping[str, Page], request: Request, file: str) -> Response:
    """A name is looked up among the files that were read."""
    if file not in pages or file.endswith(".html"):
        where = request.url.path[:80]
        raise NotFound(f"GET {where}: there is no such file; /docs lists all paths")
    return pages[file].answer(request)


def _read(folder: Path) -> Mapping[str, Page]:
    return {
        path.relative_to(folder).as_posix(): Page(path.read_bytes(), TYPES[path.suffix])
        for path in sorted(folder.rglob("*"))
        if path.suffix in TYPES
    }


ROUTES = (
    FastApiRoute("/", playground),
    FastApiRoute("/page/{file:path}", page_file),
    FastApiRoute("/swagger/{file:path}", swagger_file),
    FastApiRoute("/models/{name}/certificate", certificate),
    FastApiRoute("/models/{name}/{version}/certificate", version_certificate),
)
