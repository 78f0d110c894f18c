"""Large answers of any kind: limited, counted while they are made and until they are read."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import orjson
import pytest
from starlette.requests import Request
from starlette.responses import Response

from addnorm.service.asking.answer import QUICK_BYTES
from addnorm.service.asking.ask import Ask
from addnorm.service.engine.registry import Models
from addnorm.service.server.table import PROTOCOLS
from addnorm.service.server.wiring import Service, build
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import PlainRoute, Protocol, Route
from addnorm.service.wire.serving import ANSWER_BYTES
from addnorm.service.wire.tools import Tools
from tests.conftest import OWN, client_of
from tests.support.waiting import PATIENCE_S, eventually, runs_held_up

MIB = 2**20
JSON = {"content-type": "application/json"}
LIMITS = {"max_response_bytes": 3 * MIB, "max_pending_response_bytes": 4 * MIB}


class Sized(Strict):
    num_bytes: int


async def get(request: Request) -> Response:
    """Answers of any size, as FastAPI's own routes make theirs."""
    return Response(bytes(int(request.query_params["num_bytes"])))


class Served(NamedTuple):
    service: Service
    client: httpx.Client
    made: list[int]  # bytes that were held while each answer was made

    @property
    def held(self) -> int:
        return self.service.gate.total["responses"]

    @contextmanager
    def unread(self, method: str, path: str, num_bytes: int) -> Iterator[socket.socket]:
        body = orjson.dumps({"num_bytes": num_bytes})
        head = f"{method} {path}?num_bytes={num_bytes} HTTP/1.1\r\nhost: localhost\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        url = urlsplit(str(self.client.base_url))
        with closing(socket.socket()) as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.settimeout(PATIENCE_S)
            caller.connect((url.hostname, url.port))
            caller.sendall(head.encode() + body)
            assert caller.recv(12) == b"HTTP/1.1 200"
            yield caller


@pytest.fixture(scope="module")
def served(few: Models) -> Iterator[Served]:
    made: list[int] = []

    async def make(asked: Sized, ask: Ask, tools: Tools) -> bytes:
        await asyncio.sleep(0)
        made.append(service.gate.total["responses"])
        return bytes(asked.num_bytes)

    sized = Route(
        path="/sized", name="sized", summary="Sized", body=Sized, decode=make, infers=False
    )
    protocol = Protocol(
        tag="sized",
        routes=(sized, PlainRoute("/sized", get), PlainRoute("/open", get)),
        errors=OPENAI_ERRORS,
        scopes={"/open": None},
    )
    settings = Settings(**{**OWN, **LIMITS})
    service = build(few, settings, protocols=(*PROTOCOLS, protocol))
    with client_of(service) as client:
        yield Served(service, client, made)


def test_no_answer_to_a_body_is_over_the_limit(served: Served) -> None:
    answer = served.client.post("/sized", json={"num_bytes": 3 * MIB})
    assert len(answer.content) == 3 * MIB
    answer = served.client.post("/sized", json={"num_bytes": 3 * MIB + 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "the answer has 3145729 bytes, the limit is 3145728 (ADDNORM_MAX_RESPONSE_BYTES): send less"
        " at once"
    )


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_an_answer_counts_until_it_is_read(served: Served, method: str) -> None:
    with served.unread(method, "/sized", 3 * MIB):
        assert served.held == 3 * MIB
        full = served.client.request(method, "/sized?num_bytes=3000000", json={"num_bytes": 10**6})
        assert (full.status_code, full.json()["error"]["code"]) == (429, "responses_full")
        assert served.client.post("/sized", json={"num_bytes": 100}).status_code == 200
    assert eventually(lambda: served.held == 0)
    whole = served.client.request(method, "/sized?num_bytes=3000000", json={"num_bytes": 3_000_000})
    assert whole.content == bytes(3_000_000)


def test_an_answer_counts_while_it_is_made(served: Served) -> None:
    body = orjson.dumps({"num_bytes": 1})
    headers = {"content-type": "application/json"}
    assert served.client.post("/sized", content=body, headers=headers).content == bytes(1)
    assert served.made[-1] == ANSWER_BYTES * len(body)
    assert served.held == 0


@pytest.mark.parametrize("path", ["/open", "/openapi.json", "/swagger/swagger-ui-bundle.js"])
def test_what_is_open_to_all_takes_no_place_of_others(served: Served, path: str) -> None:
    with served.unread("GET", path, 3 * MIB):
        assert served.held == 0


def test_files_of_the_documentation_are_held_once(served: Served) -> None:
    first = served.client.get("/swagger/swagger-ui.css")
    assert first.headers["content-type"] == "text/css; charset=utf-8"
    same = {"if-none-match": first.headers["etag"]}
    assert served.client.get("/swagger/swagger-ui.css", headers=same).status_code == 304
    assert served.client.get("/swagger/favicon-32x32.png").headers["content-type"] == "image/png"
    for name in ("nothing", "__init__.py", "..%2f__init__.py", "../__init__.py"):
        assert served.client.get(f"/swagger/{name}").status_code == 404


def test_a_body_counts_until_it_is_decoded_and_its_answer_from_then_on(
    few: Models, served: Served
) -> None:
    total, sent = served.service.gate.total, {"model": "notebook", "input_ids": [[1, 3, 2]]}
    body = orjson.dumps(sent) + b" " * QUICK_BYTES  # smaller ones do not count
    with runs_held_up(few) as go, ThreadPoolExecutor(1) as other:
        answer = other.submit(served.client.post, "/v1/infer", content=body, headers=JSON)
        assert eventually(lambda: served.service.scheduler.num_busy == 1)
        assert (total["requests"], total["bodies"]) == (1, 0)
        assert total["responses"] > 0
        go.set()
        assert answer.result().status_code == 200
    assert eventually(lambda: not any(total.values()))
