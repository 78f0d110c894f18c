"""Asks small requests in turn every few milliseconds, from a process of its own.

Light: imports little."""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from multiprocessing.connection import Connection
from typing import NamedTuple

TIMEOUT_S = 120.0


class Delay(NamedTuple):
    """Seconds that one ask waited. request: its place among those asked in turn."""

    request: int
    status: int
    seconds: float


def delays(
    host: str,
    port: int,
    is_over: Callable[[], bool],
    every_s: float,
    requests: Sequence[bytes],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> list[Delay]:
    """The time that each ask waited for its answer, by this clock.

    A late answer delays the requests that were due meanwhile. Each of those is not sent, and counts
    with the time since it was due. Otherwise a stall would hide most of itself ("coordinated
    omission", G. Tene).
    """
    waits: list[Delay] = []
    turns = cycle(enumerate(requests))
    with socket.create_connection((host, port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due = clock()
        while not is_over():
            sleep(max(0.0, due - clock()))
            number, request = next(turns)
            sent = clock()  # that we woke late is no fault of the server
            connection.sendall(request)
            status = _read(connection)
            answered = clock()
            waits.append(Delay(number, status, answered - sent))
            due = max(due, sent - every_s) + every_s
            while due < answered:
                waits.append(Delay(number, status, answered - due))
                due += every_s
    return waits


def _read(connection: socket.socket) -> int:
    """The status of one answer, once it came to its end."""
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0:
        received += _some(connection)
    head = received[:end].lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    num_missing = length - (len(received) - end - 4)
    while num_missing > 0:
        num_missing -= len(_some(connection))
    return int(head.split()[1])


def _some(connection: socket.socket) -> bytes:
    if not (received := connection.recv(65_536)):
        raise ConnectionError("the server closed the connection")
    return received


class Asker:
    """The process, which asks from `start` to `stop`."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def start(self) -> None:
        self._pipe.send("start")

    def stop(self) -> list[Delay]:
        """The delays since `start`. OSError if the server did not answer each."""
        self._pipe.send("stop")
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


@contextmanager
def asker(host: str, port: int, every_s: float, requests: Sequence[bytes]) -> Iterator[Asker]:
    context = multiprocessing.get_context("spawn")  # a fork would inherit our threads' locks
    pipe, child_pipe = context.Pipe()
    process = context.Process(
        target=_ask, args=(child_pipe, host, port, every_s, requests), daemon=True
    )
    process.start()
    try:
        pipe.recv()  # it has started, which takes a while
        yield Asker(pipe)
    finally:
        pipe.send(None)
        process.join(5)
        process.kill()


def _ask(pipe: Connection, host: str, port: int, every_s: float, requests: Sequence[bytes]) -> None:
    with suppress(
        OSError
    ):  # where we may: what is measured is the server's delay, not this process's turn at a core
        os.nice(-10)
    pipe.send("ready")
    while pipe.recv():
        try:
            answer: object = delays(host, port, pipe.poll, every_s, requests)
        except OSError as error:
            answer = error
        pipe.recv()  # "stop"
        pipe.send(answer)
