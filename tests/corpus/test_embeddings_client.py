"""The client of /v1/embeddings, beside servers that are busy, small or replaced."""

import asyncio
import base64
import json
from collections.abc import Callable

import httpx
import numpy as np
import pytest

from addnorm.corpus.embeddings_client import Embedded, Options, api_key, embed, server
from addnorm.corpus.errors import CorpusError

TEXTS = ["a" * length for length in range(1, 101)]
Handler = Callable[[httpx.Request], httpx.Response]


def ask(handler: Handler, model: str | None = None) -> Embedded:
    async def run() -> Embedded:
        transport = httpx.MockTransport(handler)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await embed(client, TEXTS, range(1000, 1100), Options(model))

    return asyncio.run(run())


def texts_of(request: httpx.Request) -> list[str]:
    texts: list[str] = json.loads(request.content)["input"]
    return texts


def answer(request: httpx.Request, digest: str | None = None) -> httpx.Response:
    """A vector of one number for each text: its length."""
    vectors = (np.float32(len(text)).tobytes() for text in texts_of(request))
    data = [{"embedding": base64.b64encode(vector).decode()} for vector in vectors]
    headers = {"x-addnorm-fingerprint": digest} if digest else {}
    return httpx.Response(200, json={"data": data, "model": "m"}, headers=headers)


def refused(status: int, message: str, param: str | None = None, **headers: str) -> httpx.Response:
    error = {"error": {"message": message, "param": param}}
    return httpx.Response(
        status, json=error, headers={name.replace("_", "-"): headers[name] for name in headers}
    )


def lengths(found: Embedded) -> list[int]:
    return found.vectors[:, 0].astype(int).tolist()


def test_a_busy_server_is_waited_for() -> None:
    refusals = iter([429, 503, 429])

    def handler(request: httpx.Request) -> httpx.Response:
        status = next(refusals, None)
        return refused(status, "full", retry_after="0.01") if status else answer(request)

    client_answer = ask(handler)
    assert lengths(client_answer) == list(range(1, 101))
    assert client_answer.fingerprint is None  # the server does not report a fingerprint


@pytest.mark.parametrize(("status", "param"), [(400, "input"), (413, None), (504, None)])
def test_a_request_that_is_too_large_is_halved(status: int, param: str | None) -> None:
    """Answers keep the order of the texts."""

    def handler(request: httpx.Request) -> httpx.Response:
        if len(texts_of(request)) > 5:
            return refused(status, "send less at once", param)
        return answer(request)

    assert lengths(ask(handler)) == list(range(1, 101))


def test_a_text_that_is_rejected_is_named_by_its_row() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        is_bad = TEXTS[77] in texts_of(request)
        return refused(400, "too long", "input") if is_bad else answer(request)

    with pytest.raises(CorpusError, match=r"row 1077: .* answered 400: too long"):
        ask(handler)


def test_other_rejections_and_answers_end_at_once() -> None:
    calls = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return refused(400, "no such field", "dtype")

    with pytest.raises(CorpusError, match="no such field"):
        ask(handler)
    assert len(calls) <= 4  # the requests that are sent at once
    for body in ("<html>", '{"data": []}', '{"data": [{"embedding": [1, 2]}], "model": "m"}'):
        with pytest.raises(CorpusError, match="did not answer with one vector per text"):
            ask(lambda request, body=body: httpx.Response(200, text=body))  # type: ignore[misc]
    with pytest.raises(CorpusError, match="answered 502: Bad Gateway"):
        ask(lambda request: httpx.Response(502, text="Bad\nGateway"))


def test_a_model_that_is_replaced_meanwhile_is_noticed() -> None:
    digests = iter(["a" * 32] * 2 + ["b" * 32] * 9)
    with pytest.raises(CorpusError, match="replaced the model during the check"):
        ask(lambda request: answer(request, next(digests)))


def test_the_parts_are_those_of_the_version_that_is_asked() -> None:
    """The answer names a model without its version."""
    digest, of_int8 = "a" * 32, "b" * 32
    parts = {"fp32": {"precision": "fp32"}, "int8": {"precision": "int8"}}

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return answer(request, digest)
        if request.url.path != "/v1/models/m/1":
            return refused(404, "another version's")
        entry = {"fingerprint": {"fp32": digest, "int8": of_int8}, "fingerprint_parts": parts}
        return httpx.Response(200, json=entry)

    found = ask(handler, "m/1")
    assert found.fingerprint == (digest, parts["fp32"], None)
    assert found.by_digest[digest].parts == parts["fp32"]
    assert found.by_digest[of_int8].parts == parts["int8"]


def test_a_server_with_keys_is_answered_with_the_option_for_one() -> None:
    with pytest.raises(CorpusError, match=r"answered 401: no key was sent; .* --api-key-env"):
        ask(lambda request: refused(401, "no key was sent"))


def test_the_api_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_A_TEST", "secret")

    async def header() -> str | None:
        async with server("http://server", api_key("KEY_OF_A_TEST")) as client:
            return client.headers.get("authorization")

    assert asyncio.run(header()) == "Bearer secret"
