"""The head of an answer goes out with the first part of its body, in one write."""

import asyncio
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import pytest

from addnorm.service.server.http.connection import Connection
from addnorm.service.server.http.joined_head import JoinedHead
from tests.conftest import Serve
from tests.support.waiting import PATIENCE_S

CONTINUE, HEAD = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"


class Written(asyncio.Transport):
    """Keeps what each write hands over."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.writes.append(b"".join(map(bytes, list_of_data)))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.writes.append(b"closed")


@pytest.mark.parametrize(
    ("parts", "written"),
    [
        ([HEAD, b"body"], [HEAD + b"body"]),
        ([HEAD, memoryview(b"body"), b"more"], [HEAD + b"body", b"more"]),
        ([HEAD, b""], [HEAD]),
        ([CONTINUE, HEAD, b"body"], [CONTINUE, HEAD + b"body"]),
    ],
)
def test_head_and_body_are_one_write(parts: list[bytes], written: list[bytes]) -> None:
    answer = JoinedHead(transport := Written())
    for part in parts:
        answer.write(part)
    assert transport.writes == written


def test_a_head_whose_body_never_comes_is_sent_before_the_end() -> None:
    answer = JoinedHead(transport := Written())
    answer.write(HEAD)
    answer.close()
    assert transport.writes == [HEAD, b"closed"]


def test_a_connection_joins_its_answers_but_those_that_have_no_body(serve: Serve) -> None:
    made = list[Connection]()

    class Noted(Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            made.append(self)

    with serve(Noted) as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), PATIENCE_S) as caller:
            for method in ("HEAD", "GET"):  # the connection stays open: nothing else sends a head
                caller.sendall(f"{method} /livez HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                assert caller.recv(10_000).startswith(b"HTTP/1.1 200")
                assert isinstance(made[0].cycle.transport, JoinedHead) == (method == "GET")
