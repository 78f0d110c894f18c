"""Asks `GET /livez` every few milliseconds, from a process of its own. Light: imports little."""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

EVERY_S = 0.005
TIMEOUT_S = 120.0
REQUEST = b"GET /livez HTTP/1.1\r\nhost: livez\r\n\r\n"


def delays(
    host: str, port: int, is_over: Callable[[], bool], every_s: float = EVERY_S
) -> list[float]:
    """Seconds that each ask waited for its answer.

    A late answer delays the requests that were due meanwhile. Each of those is not sent, and counts
    with the time since it was due. Otherwise a stall would hide most of itself ("coordinated
    omission", G. Tene).
    """
    seen: list[float] = []
    with socket.create_connection((host, port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due = time.perf_counter()
        while not is_over():
            time.sleep(max(0.0, due - time.perf_counter()))
            sent = time.perf_counter()  # that we woke late is no fault of the server
            connection.sendall(REQUEST)
            _read(connection)
            answered = time.perf_counter()
            seen.append(answered - sent)
            due = max(due, sent - every_s) + every_s
            while due < answered:
                seen.append(answered - due)
                due += every_s
    return seen


def _read(connection: socket.socket) -> None:
    """One answer to its end. ConnectionError unless it is a 200."""
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0:
        received += _some(connection)
    head = received[:end].lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    if head.split()[1] != b"200":
        raise ConnectionError(f"GET /livez: {head[:60]!r}")
    num_missing = length - (len(received) - end - 4)
    while num_missing > 0:
        num_missing -= len(_some(connection))


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

    def stop(self) -> list[float]:
        """The delays since `start`. ConnectionError if the server did not answer each with 200."""
        self._pipe.send("stop")
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


@contextmanager
def asker(host: str, port: int) -> Iterator[Asker]:
    context = multiprocessing.get_context("spawn")  # a fork would inherit our threads' locks
    ours, theirs = context.Pipe()
    process = context.Process(target=_ask, args=(theirs, host, port), daemon=True)
    process.start()
    try:
        ours.recv()  # it has started, which takes a while
        yield Asker(ours)
    finally:
        ours.send(None)
        process.join(5)
        process.kill()


def _ask(pipe: Connection, host: str, port: int) -> None:
    with suppress(
        OSError
    ):  # where we may: what is measured is the server's delay, not this process's turn at a core
        os.nice(-10)
    pipe.send("ready")
    while pipe.recv():
        try:
            seen: object = delays(host, port, pipe.poll)
        except OSError as error:
            seen = error
        pipe.recv()  # "stop"
        pipe.send(seen)
