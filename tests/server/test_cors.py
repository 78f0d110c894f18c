"""Pages of other origins: what browsers ask for before a request, and what they are told."""

import logging

import httpx
import pytest

from tests.conftest import Serve
from tests.support import web

PAGE = "https://page.example"
GOOD = {"model": "notebook", "input_ids": [[1, 3, 4, 5, 2]], "outputs": ["pooled"]}
# as OpenAI's and Cohere's SDKs have a browser ask
ASKED = "authorization,content-type,x-fern-language,x-stainless-os,x-stainless-retry-count"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": ASKED,
}


@pytest.mark.parametrize(
    ("origins", "told"),
    [(PAGE, PAGE), (f"https://two.example, {PAGE}", PAGE), ("*", "*"), ("https://two.example", "")],
)
def test_an_allowed_origin_may_send_the_headers_it_asks_for_and_another_is_told_nothing(
    serve: Serve, origins: str, told: str
) -> None:
    """Also from a public page into this network, of which Chrome asks more."""
    private = "access-control-{}-private-network"
    with serve(cors_origins=origins) as url:
        for more in ({}, {private.format("request"): "true"}):
            answer = web.options(f"{url}/v1/embeddings", headers={**PREFLIGHT, **more})
            headers = answer.headers
            assert answer.status_code == (200 if told else 400), answer.text
            assert headers.get("access-control-allow-origin", "") == told
            assert "access-control-allow-credentials" not in headers
            if told:
                assert headers["access-control-allow-headers"] == ASKED
                assert headers.get(private.format("allow")) == ("true" if more else None)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v2/rerank", "/nothing"])
def test_without_the_setting_the_answer_names_it(client: httpx.Client, path: str) -> None:
    answer = client.options(path, headers=PREFLIGHT)
    assert answer.status_code == 405
    assert f"ADDNORM_CORS_ORIGINS={PAGE}" in answer.text
    plain = client.options("/v1/embeddings")
    assert (plain.status_code, plain.headers["allow"]) == (405, "POST")
    assert "ADDNORM_CORS_ORIGINS" not in plain.text


def test_pages_read_answers_where_keys_are_needed_too(serve: Serve) -> None:
    keys = {"api_keys": "web infer web-0123456789abcdef"}
    with serve(**keys) as url:
        answer = web.options(f"{url}/v1/embeddings", headers=PREFLIGHT)
    assert "ADDNORM_CORS_ORIGINS" in answer.text
    with serve(**keys, cors_origins=PAGE) as url:
        assert web.options(f"{url}/v1/infer", headers=PREFLIGHT).status_code == 200  # without a key
        for more, status in (({}, 401), ({"authorization": "Bearer web-0123456789abcdef"}, 200)):
            answer = web.post(f"{url}/v1/infer", json=GOOD, headers={"origin": PAGE, **more})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == PAGE  # else it sees no status


def test_the_log_names_it_once_as_browsers_do_not_show_the_answer(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "addnorm")
    with serve() as url:
        for _ in range(2):
            web.options(f"{url}/v1/embeddings", headers=PREFLIGHT)
    (message,) = caplog.messages
    assert message.endswith(f"set ADDNORM_CORS_ORIGINS={PAGE}")
