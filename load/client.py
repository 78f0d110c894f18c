"""A light HTTP/1.1 client and the two ways to apply load: closed loop and open loop.

Written by hand because the client shares the cores with the server. A request at concurrency 32
costs it about 35 us of CPU, aiohttp 140 us, httpx 3,800 us; the server needs 570 us at least.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import uvloop

CHUNKED = 0  # in place of the end of an answer
NO_RESPONSE = 0  # "status" of a request without a whole response


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time. Answers state their Content-Length, or come
    in chunks."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._received = bytearray()
        self._end: int | None = None  # of the answer, once its headers are read
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.is_open = True
        self.says_when = False  # whether the last answer had Retry-After

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """The answer's status and body. ConnectionError if it does not come whole."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        end_of_head = self._received.find(b"\r\n\r\n") if self._end is None else -1
        if end_of_head >= 0:
            first, *lines = bytes(self._received[:end_of_head]).lower().split(b"\r\n")
            headers = dict(line.split(b":", 1) for line in lines)
            self._status, self._start = int(first[9:12]), end_of_head + 4
            self.says_when = b"retry-after" in headers
            self._is_last = headers.get(b"connection", b"").strip() == b"close"
            length = headers.get(b"content-length")
            self._end = CHUNKED if length is None else self._start + int(length)
        if self._end is None or len(self._received) < self._end:
            return
        body: bytes | None = bytes(self._received[self._start : self._end])
        if self._end == CHUNKED:
            body = unchunked(bytes(self._received[self._start :]))
        if body is not None:
            self._received.clear()
            self._end, self.is_open = None, not self._is_last
            if self._answer and not self._answer.done():
                self._answer.set_result((self._status, body))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._answer and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed the connection"))

    def close(self) -> None:
        self._transport.close()


def unchunked(received: bytes) -> bytes | None:
    """The body of RFC 9112, 7.1, without trailers; None while it is not all there."""
    parts, start = list[bytes](), 0
    while (end := received.find(b"\r\n", start)) >= 0:
        size, start = int(received[start:end].partition(b";")[0], 16), end + 2
        if not size:
            return b"".join(parts) if len(received) >= start + 2 else None
        parts.append(received[start : start + size])
        start += size + 2
    return None


@dataclass
class Answers:
    """Answers. Equal ones to a request are kept once: most are the same bytes."""

    # request -> distinct (status, body)
    distinct: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    # for each answer: request, index among its `distinct`
    places: list[tuple[int, int]] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0

    def add(self, index: int, status: int, body: bytes, latency_s: float) -> None:
        variants = self.distinct.setdefault(index, [])
        answer = (status, body)
        if answer not in variants:
            variants.append(answer)
        self.places.append((index, variants.index(answer)))
        self.latencies_s.append(latency_s)


class Client:
    """Connections to one server, opened as they are needed."""

    def __init__(
        self,
        host: str,
        port: int,
        bodies: list[bytes],
        timeout_s: float = 60.0,
        *headers: str,
        path: str = "/v1/infer",
        is_tls: bool = False,
    ) -> None:
        self._address, self._tls = (host, port), is_tls or None
        self._timeout_s = timeout_s
        first = f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"
        self._requests = [
            "\r\n".join((*first, f"Content-Length: {len(body)}", *headers, "", "")).encode() + body
            for body in bodies
        ]
        self._idle: list[Connection] = []
        self.num_without_when = 0  # rejections (429, 503) that lacked Retry-After

    async def ask(self, index: int) -> tuple[int, bytes]:
        """Status and body of the answer to one of the bodies; (NO_RESPONSE, why) if none comes."""
        try:
            connection = await self._connection()
        except OSError as error:
            return NO_RESPONSE, str(error).encode()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await connection.send(self._requests[index])
        except OSError as error:  # also TimeoutError
            connection.close()
            return NO_RESPONSE, f"{type(error).__name__} {error}".encode()
        self._idle.append(connection)
        self.num_without_when += answer[0] in (429, 503) and not connection.says_when
        return answer

    async def _connection(self) -> Connection:
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, *self._address, ssl=self._tls
        )
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


async def closed_loop(
    client: Client, order: Iterator[int], concurrency: int, seconds: float
) -> Answers:
    """`concurrency` callers; each sends its next request when the last one is answered.

    Ends after `seconds`, or with `order`.
    """
    answers = Answers()
    started = time.monotonic()

    async def caller() -> None:
        while (sent := time.monotonic()) < started + seconds and (
            index := next(order, None)
        ) is not None:
            status, body = await client.ask(index)
            answers.add(index, status, body, time.monotonic() - sent)

    await asyncio.gather(*(caller() for _ in range(concurrency)))
    answers.wall_s = time.monotonic() - started
    return answers


async def open_loop(
    client: Client, order: Iterator[int], concurrency: int, seconds: float, rate: float, seed: int
) -> Answers:
    """Poisson arrivals, `rate` a second, on at most `concurrency` connections.

    Latency counts from the time at which the request was due. Otherwise a stalled server would
    delay the requests that measure it ("coordinated omission", G. Tene). Ends after `seconds`, or
    with `order`.
    """
    answers = Answers()
    room = asyncio.Semaphore(concurrency)
    started = time.monotonic()

    async def caller(index: int, intended: float) -> None:
        async with room:
            status, body = await client.ask(index)
        answers.add(index, status, body, time.monotonic() - intended)

    async with asyncio.TaskGroup() as group:
        for arrival_s, index in zip(arrivals(rate, seconds, seed), order, strict=False):
            intended = started + arrival_s
            await asyncio.sleep(intended - time.monotonic())
            group.create_task(caller(index, intended))
    answers.wall_s = time.monotonic() - started
    return answers


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Poisson arrival times within `seconds`."""
    draws = np.random.default_rng(seed)
    gaps = draws.exponential(1 / rate, int(rate * seconds * 2) + 100)
    times = gaps.cumsum()
    return times[times < seconds].tolist()  # type: ignore[no-any-return]


def runner() -> asyncio.Runner:
    """An event loop at half the cost per request of asyncio's own."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
