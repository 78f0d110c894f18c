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


@pytest.mark.parametrize("origins", [PAGE, f"https://two.example, {PAGE}", "*"])
def test_an_allowed_origin_may_send_the_headers_it_asks_for(serve: Serve, origins: str) -> None:
    with serve(cors_origins=origins) as url:
        answer = web.options(f"{url}/v1/embeddings", headers=PREFLIGHT)
    assert answer.status_code == 200, answer.text
    assert answer.headers["access-control-allow-headers"] == ASKED
    assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(("origins", "status"), [(PAGE, 200), ("*", 200), ("https://b.c", 400)])
def test_chrome_may_call_from_a_public_page_into_this_network(
    serve: Serve, origins: str, status: int
) -> None:
    with serve(cors_origins=origins) as url:
        headers = {**PREFLIGHT, "access-control-request-private-network": "true"}
        answer = web.options(f"{url}/v1/embeddings", headers=headers)
    assert answer.status_code == status
    if status == 200:
        assert answer.headers["access-control-allow-private-network"] == "true"


def test_another_origin_is_told_nothing(serve: Serve) -> None:
    with serve(cors_origins="https://two.example") as url:
        answer = web.options(f"{url}/v1/embeddings", headers=PREFLIGHT)
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers


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
