"""httpx for tests on busy machines.

httpx waits 5 s where a test names no time. It also keeps an idle connection for 5 s, as the server
does: a request that is sent in the moment in which the server closes it would be lost. And it reads
all certificates of the machine for each client: here once.
"""

from typing import Any

import httpx

from tests.support.waiting import PATIENCE_S

IDLE_S = 2.0
DEFAULTS: dict[str, Any] = {"timeout": PATIENCE_S, "verify": httpx.create_ssl_context()}


def client(**named: Any) -> httpx.Client:
    limits = httpx.Limits(keepalive_expiry=IDLE_S)
    return httpx.Client(**{**DEFAULTS, "limits": limits, **named})


def get(url: str, **named: Any) -> httpx.Response:
    return httpx.get(url, **{**DEFAULTS, **named})


def post(url: str, **named: Any) -> httpx.Response:
    return httpx.post(url, **{**DEFAULTS, **named})


def options(url: str, **named: Any) -> httpx.Response:
    return httpx.options(url, **{**DEFAULTS, **named})


def answered(response: httpx.Response) -> Any:
    """The body without its id, which every answer has of its own."""
    body = response.json()
    return {name: value for name, value in body.items() if name != "id"}
