"""How inference routes are found, and how their headers are."""

import asyncio
from typing import Any

import pytest
from fastapi import APIRouter
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from addnorm.service.protocols.routes.inference_route import IndexedHeaders, InferenceRoute
from addnorm.service.server.app import ByPath

SENT = [(b"accept", b"text/html"), (b"x-word", b"caf\xe9"), (b"accept", b"*/*")]


def test_headers_are_those_of_starlette() -> None:
    """Names in any case, of equal names the first value."""
    headers = IndexedHeaders({"type": "http", "headers": SENT})
    assert headers["Accept"] == headers.get("accept") == "text/html"
    assert headers.get("X-Word") == "café"
    assert "ACCEPT" in headers
    assert "host" not in headers
    assert headers.get("host", "none") == "none"
    assert headers.getlist("accept") == ["text/html", "*/*"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/one", "first"),  # of two with one path
        ("/two", "others"),
        ("/of/a/b", "others"),
        ("/of/a", "third"),  # by its pattern
        ("", "others"),
    ],
)
def test_a_route_is_found_by_its_path(path: str, found: str) -> None:
    seen: list[str] = []

    async def others(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append("others")

    def route(path: str, name: str) -> InferenceRoute:
        async def endpoint(_: Any) -> Any:
            async def answer(scope: Scope, receive: Receive, send: Send) -> None:
                assert scope["route"].name == name
                seen.append(name)

            return answer

        router = APIRouter(route_class=InferenceRoute)
        router.add_api_route(path, endpoint, methods=["POST"], name=name, response_model=None)
        (made,) = router.routes
        assert isinstance(made, InferenceRoute)
        return made

    routes = [route("/one", "first"), route("/one", "second"), route("/of/{name}", "third")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "state": {}}
    asyncio.run(ByPath(routes, Router(default=others))(scope, _nothing, _nothing))
    assert seen == [found]


async def _nothing(*_: Any) -> Any:
    raise AssertionError("nothing is received or sent")
