"""The head of an answer goes out with the first part of its body, in one write."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from addnorm.service.server.http.joined_head import JoinedHead

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
