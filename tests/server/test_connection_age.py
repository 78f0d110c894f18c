"""A connection that has reached its age ends with an answer, and no answer is lost by it."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from addnorm.service.server.http.connection import Connection
from addnorm.service.server.http.last_answer import drawn_age
from tests.conftest import Serve, inference_of, serving
from tests.support import web
from tests.support.metrics import samples
from tests.support.waiting import PATIENCE_S, eventually, runs_held_up

AGE_S = 3600.0  # tests do not wait for it: see `grow_old`
GOOD = json.dumps(
    {"model": "notebook", "input_ids": [[1, 3, 4, 5, 2]], "outputs": ["pooled"]}
).encode()
LARGE = json.dumps({"model": "gpt", "input_ids": [[7] * 300] * 2, "outputs": ["logits"]}).encode()


def request(body: bytes = GOOD, method: str = "POST", path: str = "/v1/infer") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)


REQUESTS = {
    "inference": (request(), 200),
    "long answer": (request(b"", "GET", "/openapi.json"), 200),
    "HEAD": (request(b"", "HEAD", "/livez"), 200),
    "error of the router": (request(b"", "GET", "/nowhere"), 404),
    "error of the request": (request(b"{"), 400),
}


class Noted(Connection):
    """Noted when it is made."""

    made: ClassVar[list[Connection]] = []

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.made.append(self)


@pytest.fixture
def made() -> list[Connection]:
    """The connections that this test makes to a server of `Noted` ones."""
    Noted.made.clear()
    return Noted.made


def grow_old(made: list[Connection]) -> None:
    """The connections made so far reach their age."""
    assert made
    for connection in made:
        assert connection.aged_at is not None
        connection.aged_at = 0.0


@pytest.fixture(scope="module")
def aging(serve: Serve) -> Iterator[str]:
    with serve(Noted, connection_max_age_s=AGE_S) as url:
        yield url


def call(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=PATIENCE_S)


def ask(caller: socket.socket, sent: bytes) -> tuple[int, str | None]:
    """Status and `connection` of one answer."""
    caller.sendall(sent)
    return answered(caller, sent.split()[0].decode())


def answered(caller: socket.socket, method: str) -> tuple[int, str | None]:
    with closing(http.client.HTTPResponse(caller, method=method)) as answer:
        answer.begin()
        answer.read()
        return answer.status, answer.headers["connection"]


def rest(caller: socket.socket) -> bytes:
    """All until the server's end. ConnectionError if it resets the connection."""
    return b"".join(iter(lambda: caller.recv(65536), b""))


def test_without_the_setting_no_connection_ends_by_its_age(
    serve: Serve, made: list[Connection]
) -> None:
    with serve(Noted) as url, closing(call(url)) as caller:
        assert ask(caller, request()) == (200, None)
        assert [connection.aged_at for connection in made] == [None]


@pytest.mark.parametrize("name", REQUESTS)
def test_the_first_answer_after_the_age_is_the_last(
    aging: str, made: list[Connection], name: str
) -> None:
    sent, status = REQUESTS[name]
    with closing(call(aging)) as caller:
        assert ask(caller, sent) == (status, None)
        grow_old(made)
        assert ask(caller, sent) == (status, "close")
        assert rest(caller) == b""


def test_a_caller_of_http_1_0_is_answered_as_ever(aging: str, made: list[Connection]) -> None:
    with closing(call(aging)) as caller:
        assert ask(caller, request()) == (200, None)
        grow_old(made)
        assert ask(caller, request().replace(b"HTTP/1.1", b"HTTP/1.0")) == (200, "close")
        assert rest(caller) == b""


def test_over_https_too(
    serve: Serve, certificate: tuple[Path, Path], made: list[Connection]
) -> None:
    cert, key = certificate
    with (
        serve(Noted, connection_max_age_s=AGE_S, tls_cert=cert, tls_key=key) as url,
        web.client(base_url=url, verify=False) as client,
    ):
        assert "connection" not in client.get("/livez").headers
        grow_old(made)
        assert client.get("/livez").headers["connection"] == "close"
        assert "connection" not in client.get("/livez").headers  # another connection


@contextmanager
def held_up(small: Path) -> Iterator[tuple[str, threading.Event]]:
    """A server whose runs of notebook wait, and what lets them go."""
    inference = inference_of(small, connection_max_age_s=AGE_S)
    with serving(inference, Noted) as url, runs_held_up(inference.models) as go:
        yield url, go


@pytest.mark.parametrize("num_sent", [1, 5])
def test_what_is_under_way_when_the_age_is_reached_is_answered(
    small: Path, made: list[Connection], num_sent: int
) -> None:
    with held_up(small) as (url, go), closing(call(url)) as caller:
        caller.sendall(request() * num_sent)
        assert eventually(lambda: bool(made) and len(made[0].pipeline) == num_sent - 1)
        grow_old(made)
        go.set()
        received = rest(caller)
    assert received.count(b"HTTP/1.1 200 OK") == num_sent
    assert received.count(b"connection: close") == 1
    assert received.rindex(b"connection: close") > received.rindex(b"HTTP/1.1 200 OK")


def test_an_answer_before_the_end_of_its_request_is_not_the_last(
    aging: str, made: list[Connection]
) -> None:
    """The caller still sends: it would lose the answer."""
    sent = request(b" " * 500_000, path="/nowhere")
    with closing(call(aging)) as caller:
        assert ask(caller, request()) == (200, None)
        grow_old(made)
        assert ask(caller, sent[:1000]) == (404, None)
        caller.sendall(sent[1000:])
        assert ask(caller, request()) == (200, "close")


def test_what_is_sent_after_the_last_answer_began_does_not_destroy_it(
    aging: str, made: list[Connection]
) -> None:
    with closing(socket.socket()) as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.settimeout(PATIENCE_S)
        caller.connect(("127.0.0.1", int(aging.rpartition(":")[2])))
        assert ask(caller, request()) == (200, None)
        grow_old(made)
        caller.sendall(request(LARGE))
        received = caller.recv(1000)
        assert b"connection: close" in received
        caller.sendall(request() * 200)
        time.sleep(0.2)
        with closing(http.client.HTTPResponse(caller)) as answer:
            length = int(received.partition(b"content-length: ")[2].split()[0])
            assert answer.fp is not None
            received += answer.fp.read()
    head, _, body = received.partition(b"\r\n\r\n")
    assert len(body) == length > 5_000_000
    assert head.startswith(b"HTTP/1.1 200 OK")


class Impatient(Noted):
    """Closed after 0.2 idle seconds."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.timeout_keep_alive = 0.2  # type: ignore[assignment]  # uvicorn's are whole seconds


def test_a_caller_that_does_not_close_is_left_in_the_end(
    aging: str, made: list[Connection]
) -> None:
    with closing(call(aging)) as caller:
        assert ask(caller, request()) == (200, None)
        grow_old(made)
        (own,) = made
        own.timeout_keep_alive = 600
        assert ask(caller, request()) == (200, "close")
        assert rest(caller) == b""
        assert own in own.connections
        timer = own.timeout_keep_alive_task
        assert timer
        assert timer.when() > own.loop.time() + PATIENCE_S
        own.loop.call_soon_threadsafe(own.timeout_keep_alive_handler)  # when it is due
        assert eventually(lambda: own not in own.connections)


def test_a_caller_that_only_sends_is_left_too(serve: Serve, made: list[Connection]) -> None:
    with serve(Impatient, connection_max_age_s=AGE_S) as url, closing(call(url)) as caller:
        assert ask(caller, request()) == (200, None)
        grow_old(made)
        assert ask(caller, request()) == (200, "close")
        ends = time.monotonic() + PATIENCE_S
        with suppress(ConnectionError):
            while time.monotonic() < ends:
                caller.sendall(request() * 1000)
        assert time.monotonic() < ends


def test_a_request_that_has_arrived_keeps_an_idle_connection(
    serve: Serve, made: list[Connection]
) -> None:
    is_busy, has_arrived = threading.Event(), threading.Event()

    class Busy(Noted):
        def data_received(self, data: bytes) -> None:
            if b"/busy" in data:  # meanwhile a request arrives, and its connection's idle time ends
                is_busy.set()
                has_arrived.wait(PATIENCE_S)
                made[0].timeout_keep_alive_handler()
                made[0].timeout_keep_alive = 0.2  # type: ignore[assignment]  # uvicorn's: seconds
            super().data_received(data)

    with serve(Busy) as url, closing(call(url)) as caller, closing(call(url)) as busy:
        assert ask(caller, request())[0] == 200
        assert eventually(lambda: len(made) == 2)
        for connection in made:
            connection.timeout_keep_alive = 600
        assert ask(caller, request())[0] == 200
        busy.sendall(request(b"", "GET", "/busy"))
        assert is_busy.wait(PATIENCE_S)
        caller.sendall(request())
        has_arrived.set()
        assert answered(caller, "POST")[0] == 200
        assert rest(caller) == b""  # then nothing arrives


def test_the_ages_of_connections_differ_by_a_tenth() -> None:
    ages = [drawn_age(300.0) for _ in range(1000)]
    assert 270 <= min(ages) < 275
    assert 325 < max(ages) <= 330


def test_a_pool_of_connections_moves_and_no_request_fails(serve: Serve) -> None:
    with serve(connection_max_age_s=0.05) as url, web.client(base_url=url) as client:

        def status(_: int) -> int:
            return client.post("/v1/infer", content=GOOD).status_code

        with ThreadPoolExecutor(8) as callers:
            statuses = list(callers.map(status, range(200)))
        counted = samples(client.get("/metrics").text)["addnorm_connections_aged_total", ()]
    assert statuses == [200] * 200
    assert counted >= 8
