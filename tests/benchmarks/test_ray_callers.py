"""The callers of Ray Serve tell right answers, other bits, refusals and failures apart."""

import asyncio

import httpx
import pytest

from benchmarks.ray_serve.callers import WRONG, Known, ask

KNOWN = Known(b"{}", {"m/1": b"one", "m/2": b"two"})


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, b"one", "answer m/1"),
        (200, b"two", "answer m/2"),
        (200, b"other", WRONG),
        (429, b"", "refused: 429"),
        (500, b"Internal Server Error", "failed: 500"),
        (None, b"", "lost: ReadError"),
    ],
)
def test_what_became_of_a_request(status: int | None, body: bytes, outcome: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if status is None:
            raise httpx.ReadError("the proxy has died")
        return httpx.Response(status, content=body)

    async def asked() -> str:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://serve") as client:
            return await ask(client, KNOWN)

    assert asyncio.run(asked()) == outcome
