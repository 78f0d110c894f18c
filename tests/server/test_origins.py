"""Which pages may call a server without keys: the headers that their browsers send tell."""

import logging
from typing import Any

import pytest
from pydantic import SecretStr

from addnorm.service.errors import ForeignPage, MethodNotAllowed
from addnorm.service.server.auth import Keys, Origins
from addnorm.service.settings import Settings
from tests.conftest import Serve
from tests.support import web

EVIL = "https://evil.example"
OPEN = {"host": "0.0.0.0"}


def check(headers: dict[str, str], method: str = "POST", **settings: Any) -> None:
    chosen = Settings(**settings)
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": "/v1/embeddings", "headers": sent}
    Origins(chosen, Keys(chosen)).check(scope)


@pytest.mark.parametrize(
    ("headers", "settings"),
    [
        ({}, {}),  # curl, SDKs, desktop programs
        ({"host": "addnorm:8000"}, OPEN),
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}, {}),
        ({"host": "SEARCH.example", "origin": "https://search.example"}, OPEN),
        ({"host": "search.example:443", "origin": "https://search.example"}, OPEN),
        ({"host": "search.example", "origin": "http://search.example:80"}, OPEN),
        # behind a proxy that puts its own name into Host, as nginx by default
        (
            {"host": "pool", "origin": "https://search.example", "sec-fetch-site": "same-origin"},
            {},
        ),
        ({"host": "pool", "origin": EVIL}, {"cors_origins": f"https://two.example, {EVIL}"}),
        ({"host": "pool", "origin": "null"}, {"cors_origins": "null"}),
        ({"host": "pool", "origin": EVIL}, {"cors_origins": "*"}),
        (
            {"host": "search.example", "origin": "https://search.example"},
            {"cors_origins": "https://search.example"},
        ),
        # names of this machine lead to it
        *(
            ({"host": host}, {})
            for host in (
                "localhost",
                "LOCALHOST:8000",
                "127.0.0.1:8000",
                "[::1]:8000",
                "app.localhost",
                "addnorm",
                "host.docker.internal:8000",
                "192.168.1.7",
                "localhost.:8000",
            )
        ),
        # who has a key may ask from where he likes
        ({"host": "evil.example", "origin": EVIL}, {"api_keys": SecretStr("a infer " + "k" * 16)}),
    ],
)
def test_who_may_call(headers: dict[str, str], settings: dict[str, Any]) -> None:
    check(headers, **settings)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL},
        {"origin": EVIL, "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "chrome-extension://localhost:8000"},
        {"origin": "http://localhost:8000.evil.example"},
        {"origin": "http://localhost:80"},
    ],
)
@pytest.mark.parametrize("settings", [{}, OPEN, {"cors_origins": "https://two.example"}])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_pages_of_other_origins_change_and_compute_nothing(
    headers: dict[str, str], settings: dict[str, Any], method: str
) -> None:
    with pytest.raises(ForeignPage, match="set ADDNORM_CORS_ORIGINS="):
        check({"host": "localhost:8000", **headers}, method, **settings)
    check({"host": "localhost:8000", **headers}, "GET", **settings)  # pages cannot read it


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
        "localhost@evil.example", "evil.example.",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("own", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_no_other_name_does_where_only_this_machine_may_call(
    host: str, method: str, own: str
) -> None:
    with pytest.raises(ForeignPage, match="is reached as localhost"):
        check({"host": host, "origin": f"http://{host}"}, method, host=own)
    check({"host": host}, method, **OPEN)
    check({"host": host}, method, host=own, cors_origins="*")


def test_a_preflight_that_comes_so_far_is_of_no_named_origin() -> None:
    headers = {"origin": EVIL, "access-control-request-method": "POST"}
    with pytest.raises(MethodNotAllowed, match=f"ADDNORM_CORS_ORIGINS={EVIL}"):
        check(headers, "OPTIONS")


@pytest.mark.parametrize(
    "path",
    ["/v1/embeddings", "/api/embed", "/v2/models/notebook/infer", "/v2/repository/index", "/"],
)
def test_a_simple_post_of_a_page_is_refused_before_any_work(
    serve: Serve, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "addnorm")
    with serve(admin=True) as url:
        headers = {"origin": EVIL, "content-type": "text/plain"}
        for _ in range(2):
            answer = web.post(url + path, content=b"{}", headers=headers)
            assert answer.status_code == 403
            assert f"ADDNORM_CORS_ORIGINS={EVIL}" in answer.text
    (message,) = caplog.messages  # once, as browsers do not show the answer
    assert message.endswith(f"set ADDNORM_CORS_ORIGINS={EVIL}")
