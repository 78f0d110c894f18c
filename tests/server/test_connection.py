"""What callers can do to a connection: slow heads and bodies, unread answers, odd HTTP."""

import asyncio
import gc
import http.client
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from weakref import ref

import httpx
import pytest
from pydantic import SecretStr

from addnorm.service.engine.registry import Models
from addnorm.service.server.app import SENT_BYTES
from addnorm.service.server.connection import (
    LONG_PIECE_S,
    MAX_HEAD_BYTES,
    READ_BYTES,
    SILENT_S,
    Connection,
    HeadWithBody,
)
from addnorm.service.server.wiring import Service
from tests.conftest import Serve, service_of, serving
from tests.support import web
from tests.support.metrics import samples
from tests.support.process import rss_mib
from tests.support.waiting import PATIENCE_S, eventually, runs_held_up, until

GOOD = json.dumps(
    {"model": "notebook", "input_ids": [[1, 3, 4, 5, 2]], "outputs": ["pooled"]}
).encode()
LARGE = json.dumps(
    {"model": "gpt", "input_ids": [[7] * 500] * 3, "outputs": ["logits"]}
).encode()  # 20 MB of answer


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def call(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(url)), timeout=PATIENCE_S)


def head(length: int, *lines: str, path: str = "/v1/infer") -> bytes:
    first = (
        f"POST {path} HTTP/1.1",
        "host: x",
        "content-type: application/json",
        f"content-length: {length}",
    )
    return "\r\n".join((*first, *lines, "", "")).encode()


def answer_of(caller: socket.socket) -> tuple[int, Any]:
    """Status and JSON of the one answer; the server must then close."""
    received = b""
    with suppress(ConnectionError):  # a reset, if more was sent than the server has read
        while piece := caller.recv(65536):
            received += piece
    assert received, "closed without an answer"
    first, _, body = received.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(body)


def one_answer(caller: socket.socket) -> tuple[int, bytes]:
    """Status and body of one whole answer, however it comes in pieces; more may follow."""
    with closing(http.client.HTTPResponse(caller)) as answer:
        answer.begin()
        return answer.status, answer.read()


def status_of(caller: socket.socket) -> int:
    return one_answer(caller)[0]


def is_closed(caller: socket.socket) -> bool:
    """Once what was under way is read."""
    try:
        while caller.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def good(url: str) -> bool:
    return web.post(f"{url}/v1/infer", content=GOOD, timeout=PATIENCE_S).status_code == 200


@pytest.fixture(scope="module")
def quick(serve: Serve) -> Iterator[str]:
    """A server of little patience."""
    with serve(body_timeout_s=0.5, send_timeout_s=1.0) as url:
        yield url


@pytest.fixture(scope="module")
def patient(serve: Serve) -> Iterator[str]:
    """A server that waits for callers on a busy machine."""
    with serve(body_timeout_s=600.0) as url:
        yield url


def is_cut_off(caller: socket.socket, data: bytes) -> bool:
    """Sends a byte every 0.05 s. Whether the server closes before all are sent."""
    for byte in data:
        try:
            caller.sendall(bytes([byte]))
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    "start", [b"", GOOD and head(len(GOOD)) + GOOD], ids=["first request", "second request"]
)
def test_a_head_that_does_not_arrive_is_rejected_with_408(quick: str, start: bytes) -> None:
    with closing(call(quick)) as caller:
        if start:
            caller.sendall(start)
            assert status_of(caller) == 200
        assert is_cut_off(caller, b"GET /livez HTTP/1.1\r\n" + b"x: y\r\n" * 300)
        status, body = answer_of(caller)
    assert status == 408
    assert body["error"]["message"] == "the head did not arrive within 0.5 s"
    assert body["error"]["code"] == "request_timeout"


@pytest.mark.parametrize(
    ("path", "key"), [("/v1/infer", "message"), ("/v2/models/notebook/infer", None)]
)
def test_a_body_that_does_not_arrive_is_rejected_with_408(
    quick: str, path: str, key: str | None
) -> None:
    with closing(call(quick)) as caller:
        caller.sendall(head(1000, path=path) + b"{")
        status, body = answer_of(caller)
    assert status == 408
    with web.client(base_url=quick) as client:
        assert held(client, "bodies") == 0
    assert (body["error"][key] if key else body["error"]) == "the body did not arrive within 0.5 s"


def test_a_body_that_nobody_waits_for_does_not_keep_its_connection(quick: str) -> None:
    with closing(call(quick)) as caller:
        caller.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        assert status_of(caller) == 200
        assert is_cut_off(caller, b" " * 1000)


def test_a_silent_connection_is_closed(quick: str) -> None:
    with closing(call(quick)) as caller:
        assert caller.recv(100) == b""


def test_a_connection_whose_body_came_after_its_answer_is_closed(serve: Serve) -> None:
    with serve(keep_alive_s=1) as url, closing(call(url)) as caller:
        caller.sendall(head(len(GOOD), path="/nowhere"))
        assert status_of(caller) == 404
        caller.sendall(GOOD)
        assert is_closed(caller)


def test_a_connection_with_empty_lines_alone_is_closed(quick: str) -> None:
    with closing(call(quick)) as caller:
        assert is_cut_off(caller, b"\r\n" * 1000)


def noted(made: list[Connection]) -> type[Connection]:
    """Connections that are put into the list."""

    class Noted(Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            made.append(self)

    return Noted


def test_a_connection_that_is_reset_while_idle_is_not_held(serve: Serve) -> None:
    connections = list[Connection]()
    with serve(noted(connections)) as url, closing(call(url)) as caller:
        caller.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert status_of(caller) == 200
        connection = ref(connections.pop())
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.close()
        # well before the end of the time that idle connections are kept
        assert eventually(lambda: gc.collect() >= 0 and connection() is None, 20.0)


def test_slow_callers_do_not_hold_up_quick_ones(serve: Serve) -> None:
    with serve(body_timeout_s=600.0) as url, ExitStack() as callers:
        slow = [callers.enter_context(closing(call(url))) for _ in range(100)]
        for number, caller in enumerate(slow):
            caller.sendall(head(1000) + b"{" if number % 2 else b"POST /v1/infer HTTP/1.1\r\nx: ")
        assert all(good(url) for _ in range(10))  # else they would wait for the slow ones


def test_a_connection_used_again_outlives_what_one_request_may_take(quick: str) -> None:
    with closing(call(quick)) as caller:
        for _ in range(7):
            caller.sendall(head(len(GOOD)) + GOOD)
            assert status_of(caller) == 200
            time.sleep(0.6)


def test_large_bodies_in_pieces_are_no_long_heads(patient: str) -> None:
    body = GOOD + b" " * 200_000
    with closing(call(patient)) as caller:
        for _ in range(3):
            caller.sendall(head(len(body)) + body[:50_000])
            time.sleep(0.05)
            caller.sendall(body[50_000:])
            assert status_of(caller) == 200


def test_requests_sent_ahead_are_answered_in_order(patient: str) -> None:
    """Pipelining: heads that come in the same piece as bodies before them."""
    body = GOOD + b" " * 3000
    one = head(len(body)) + body
    with closing(call(patient)) as caller:
        caller.sendall(one * 3 + one[:50])
        time.sleep(0.1)
        caller.sendall(one[50:-1])
        caller.sendall(one[-1:])
        assert are_answered(caller, 4)


CHUNKED = head(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
NO_HTTP, LONG_HEAD = "this is not an HTTP/1.1 request", "bytes or more, the limit is 32768"
CODED, ENDS = "send chunked alone", "connection: close"
TRAILERS = (
    b"x-request-timeout-ms: 1\r\nx-request-timeout-ms: 2\r\n"
    b"content-encoding: gzip\r\ncontent-type: text/plain\r\n"
    b"x-request-id: from-a-trailer\r\n"
)


def chunked(body: bytes, trailers: bytes = b"") -> bytes:
    return b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers)


def coded(coding: bytes) -> bytes:
    last = CHUNKED.replace(b"chunked", coding)
    return last.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + chunked(GOOD)


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        *((sent, 400, NO_HTTP) for sent in (
            b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", b"GET  HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nhost x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"CONNECT localhost:80 HTTP/1.1\r\nhost: x\r\n\r\n",
            head(5, "content-length: 6"), head(5, "transfer-encoding: chunked"),
            *(head(5).replace(b" 5", b" " + wrong) for wrong in (b"+5", b"-5", b"5,5", b"9" * 40)),
            CHUNKED + b"zz\r\n", b"GET http://x HTTP/1.1\r\nhost: x\r\n\r\n",
        )),
        (head(5).replace(b" 5", b" 99999999999"), 413, "the limit is 16777216"),
        (head(5, "content-type: text/plain"), 400, "the header content-type is sent twice"),
        (head(5, "host: y"), 400, "the header host is sent twice"),
        (head(5, "x-request-timeout-ms: 1", "X-Request-Timeout-Ms: 2"), 400,
         "x-request-timeout-ms is sent twice"),
        (b"GET /livez HTTP/1.1\r\nconnection: close\r\n\r\n", 400, "the header host is missing"),
        (b"GET /nowhere HTTP/1.0\r\n\r\n", 404, "GET /nowhere: there is no such path"),
        (b"GET /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\nupgrade: websocket\r\n\r\n",
         404,
         "GET /nowhere: there is no such path; /docs lists all paths"),
        (head(len(GOOD), f"x: {'y' * 40_000}", ENDS) + GOOD, 431, LONG_HEAD),
        (head(len(GOOD), *(f"x{n}: y" for n in range(6000)), ENDS) + GOOD, 431, LONG_HEAD),
        (head(len(GOOD), f"x: {'y' * 24_000}", ENDS) + GOOD, 200, ""),
        (coded(b"gzip, chunked"), 400, CODED), (coded(b"deflate, chunked"), 400, CODED),
        (coded(b"gzip\r\ntransfer-encoding: chunked"), 400, CODED),
        (CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + chunked(GOOD), 400, "transfer-encoding"),
        (head(len(GOOD)).replace(b"HTTP/1.1", b"HTTP/1.0") + GOOD, 200, ""),
    ],
)  # fmt: skip
def test_what_is_no_http_is_rejected_in_json(
    patient: str, sent: bytes, status: int, words: str
) -> None:
    with closing(call(patient)) as caller:
        with suppress(ConnectionError):
            caller.sendall(sent)
        got, body = one_answer(caller)
        ends = b"HTTP/1.0" in sent or ENDS.encode() in sent
        assert not ends or is_closed(caller)
    assert got == status, body
    assert status == 200 or words in json.loads(body)["error"]["message"]
    assert words != CODED or json.loads(body)["error"]["param"] == "transfer-encoding"
    assert good(patient)


def test_trailers_count_as_no_headers(patient: str) -> None:
    with closing(call(patient)) as caller:
        for _ in range(2):  # the connection can be used again
            caller.sendall(CHUNKED + chunked(GOOD, TRAILERS))
            with closing(http.client.HTTPResponse(caller)) as answer:
                answer.begin()
                assert answer.status == 200, answer.read()
                assert answer.headers["x-request-id"] != "from-a-trailer"
                answer.read()


def test_a_key_in_a_trailer_opens_nothing(serve: Serve) -> None:
    key = "trailing-0123456789abcdef"
    with serve(api_keys=SecretStr(f"one infer {key}")) as url, closing(call(url)) as caller:
        # the body is long in coming: its trailers are there before anybody looks at the headers
        caller.sendall(CHUNKED + chunked(GOOD, f"authorization: Bearer {key}\r\n".encode()))
        assert status_of(caller) == 401


IN_CHUNKS = {
    "trailers": (b"0\r\n", b"x: y\r\n" * 1600),
    "a trailer's value": (b"0\r\nx: ", b"y" * 9600),
    "a trailer's name": (b"0\r\n", b"y" * 9600),
    "a chunk's extension": (b"1;", b"y" * 9600),
    "a chunk's size": (b"", b"0" * 9600),
    "extensions of empty value": (b"1", b";a=b" * 2400),
}
FRAMES = "sizes, extensions and trailers"
ENDLESS = {
    "a head": (b"GET /livez HTTP/1.1\r\nx: ", b"y" * 9600, ""),
    "empty lines": (b"", b"\r\n" * 4800, ""),
    **{name: (CHUNKED + first, more, FRAMES) for name, (first, more) in IN_CHUNKS.items()},
}


@pytest.mark.parametrize("case", ENDLESS)
def test_what_has_no_end_is_rejected_with_431_and_not_kept(patient: str, case: str) -> None:
    first, more, words = ENDLESS[case]
    with closing(call(patient)) as caller:
        caller.sendall(first)
        for _ in range(4):
            time.sleep(0.02)
            caller.sendall(more)
        status, body = answer_of(caller)
    assert (status, body["error"]["code"]) == (431, "head_too_large")
    assert words in body["error"]["message"]
    assert "the limit is 32768" in body["error"]["message"]


@pytest.mark.parametrize("case", IN_CHUNKS)
def test_what_frames_a_body_has_an_end_though_it_was_answered_before(
    patient: str, case: str
) -> None:
    first, more = IN_CHUNKS[case]
    sent = 0
    with closing(call(patient)) as caller:
        caller.sendall(CHUNKED.replace(b"/v1/infer", b"/livez") + first)
        caller.settimeout(0.1)
        while not is_closed(caller):
            assert sent <= MAX_HEAD_BYTES
            sent += len(more)
            caller.settimeout(0.1 if sent <= MAX_HEAD_BYTES else PATIENCE_S)
            with suppress(OSError):
                caller.sendall(more)
        assert sent


FLOODS = {
    "trailers": (
        CHUNKED + b"0\r\n",
        b"".join(b"k%05d: %b\r\n" % (n, b"v" * 100) for n in range(1000)),
    ),
    "a trailer's value": (CHUNKED + b"0\r\nx: ", b"y" * 100_000),
    "requests sent ahead": (b"", b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n" * 4000),
}


@pytest.mark.parametrize("case", FLOODS)
def test_a_flood_on_one_connection_leaves_memory_and_others_alone(serve: Serve, case: str) -> None:
    first, more = FLOODS[case]
    with serve() as url, closing(call(url)) as caller, web.client(base_url=url) as other:
        assert other.get("/livez").status_code == 200
        before, ends, longest_s = rss_mib(), time.monotonic() + 2, 0.0
        caller.settimeout(0.05)
        with suppress(ConnectionError):
            caller.sendall(first)
            while time.monotonic() < ends:
                with suppress(TimeoutError):
                    caller.sendall(more)
                start = time.process_time()  # the server's: others' turns at the cores are not its
                assert other.get("/livez").status_code == 200
                longest_s = max(longest_s, time.process_time() - start)
        assert rss_mib() - before < 20
        assert longest_s < 1.0


@contextmanager
def held_up(
    few: Models, connection: type[Connection] = Connection
) -> Iterator[tuple[str, Service, threading.Event]]:
    """A server whose runs of notebook wait: its URL, itself, and what lets them go."""
    patient = {"timeout_s": 4 * PATIENCE_S, "run_timeout_s": 4 * PATIENCE_S}
    inference = service_of(few, worker_threads=1, **patient)
    with serving(inference, connection) as url, runs_held_up(few) as go:
        yield url, inference, go


@pytest.mark.parametrize("how", ["closes", "resets", "sends no more", "has sent another ahead"])
def test_who_has_left_is_noticed_and_nothing_is_computed_for_them(few: Models, how: str) -> None:
    with held_up(few) as (url, inference, go), closing(call(url)) as first:
        first.sendall(head(len(GOOD)) + GOOD)
        assert eventually(lambda: inference.scheduler.num_busy == 1)
        callers = [call(url) for _ in range(3)]
        for caller in callers:
            caller.sendall(head(len(GOOD)) + GOOD)
        assert eventually(lambda: inference.scheduler.num_queued_tokens() == 15)
        for caller in callers:
            if how == "has sent another ahead":
                caller.sendall(head(len(GOOD)) + GOOD)
            if how == "sends no more":
                caller.shutdown(socket.SHUT_WR)
                assert is_closed(caller)
            if how == "resets":
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            caller.close()
        assert eventually(lambda: num_left(url) == 3)
        go.set()
        assert status_of(first) == 200
        assert eventually(
            lambda: inference.scheduler.num_queued_tokens() == inference.scheduler.num_busy == 0
        )
        computed = ("addnorm_micro_batch_tokens_sum", (("model", "notebook"),))
        assert samples(web.get(f"{url}/metrics").text)[computed] == 5


def test_half_a_head_ends_its_connection_once_what_came_before_is_answered(few: Models) -> None:
    late, sweeps = threading.Event(), threading.Semaphore(0)

    class Late(Connection):
        def sweep(self, now: float) -> None:
            if late.is_set():
                super().sweep(now + 1000 * self.settings.body_timeout_s)
                sweeps.release()

    with held_up(few, Late) as (url, inference, go), closing(call(url)) as caller:
        caller.sendall(head(len(GOOD)) + GOOD + b"POST /v1")
        assert eventually(lambda: inference.scheduler.num_busy == 1)
        late.set()
        for _ in range(3):
            assert sweeps.acquire(timeout=PATIENCE_S)
        go.set()
        assert status_of(caller) == 200
        assert is_closed(caller)


class Sent:
    """A transport that keeps what each system call would send."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.packets.append(data)

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.packets.append(b"".join(parts))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def answering(sent: Sent) -> SimpleNamespace:
    """What uvicorn answers a request with, as far as it has a transport."""
    cycle = SimpleNamespace()
    cycle.transport = HeadWithBody(cycle, sent)
    return cycle


def test_the_head_of_an_answer_goes_with_its_body() -> None:
    sent = Sent()
    cycle = answering(sent)
    interim, head, body = (
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 100",
    )
    for data in (interim, head, body, body):
        cycle.transport.write(data)
    assert sent.packets == [interim, head + body, body]


def test_the_head_of_an_answer_that_is_not_ended_is_sent() -> None:
    sent = Sent()
    cycle = answering(sent)
    cycle.transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
    cycle.transport.close()
    cycle.transport.close()  # nothing is written to what is closed
    assert sent.packets == [b"HTTP/1.1 200 OK\r\n\r\n"]
    assert sent.is_closed


class Late(Connection):
    def on_message_begin(self) -> None:
        time.sleep(0.02)  # the rest arrives: it is read in one round of the event loop
        super().on_message_begin()


def test_a_caller_that_leaves_after_a_large_body_is_noticed(few: Models) -> None:
    """Reading pauses at 64 KiB that the application has not taken: so may be the body's end."""
    with held_up(few, Late) as (url, inference, go), closing(call(url)) as first:
        first.sendall(head(len(GOOD)) + GOOD)
        assert eventually(lambda: inference.scheduler.num_busy == 1)
        callers = [call(url) for _ in range(8)]
        for number, caller in enumerate(callers):  # in which piece it pauses depends on the size
            body = GOOD.ljust(66_000 + 8_000 * number)
            caller.sendall(head(len(body)) + body)
        assert eventually(lambda: inference.scheduler.num_queued_tokens() == 8 * 5)
        for caller in callers:
            caller.close()
        assert eventually(lambda: inference.app.in_flight == 1)
        go.set()


def num_left(url: str) -> float:
    got = samples(web.get(f"{url}/metrics").text)
    return sum(
        v
        for (name, labels), v in got.items()
        if name == "addnorm_requests_total" and ("status", "499") in labels
    )


def test_a_body_that_its_caller_cannot_end_any_more_is_not_waited_for(serve: Serve) -> None:
    with serve(body_timeout_s=600.0) as url, closing(call(url)) as caller:
        caller.sendall(head(1000) + b"{")
        caller.shutdown(socket.SHUT_WR)
        assert is_closed(caller)


@pytest.mark.parametrize(
    ("piece_s", "has_others"), [(2 * LONG_PIECE_S, False), (0.0, True)], ids=["long", "beside"]
)
def test_others_have_their_turn_between_pieces(
    piece_s: float, has_others: bool, serve: Serve
) -> None:
    """After one that takes long to parse, and after each beside another request."""
    seen: list[str] = []

    class Slow(Connection):
        def data_received(self, data: bytes) -> None:
            seen.append("piece")
            self.loop.call_soon(seen.append, "others")
            time.sleep(piece_s)
            super().data_received(data)

    with serve(Slow) as url, closing(call(url)) as second_caller:
        if has_others:
            second_caller.sendall(head(1, "expect: 100-continue"))  # and is waited for
            assert b"100 Continue" in second_caller.recv(65536)
            seen.clear()
        assert web.post(f"{url}/v1/infer", content=b" " * 2**20).status_code == 400
    assert seen.count("piece") >= 2**20 / READ_BYTES
    assert ("piece", "piece") not in pairwise(seen)


def test_what_comes_at_once_is_parsed_in_small_pieces(serve: Serve) -> None:
    """No event loop may pass them by: each has its own way to tell who reads into a buffer."""
    sizes = list[int]()

    class Noted(Connection):
        def data_received(self, data: bytes) -> None:
            sizes.append(len(data))
            super().data_received(data)

    body = GOOD + b" " * 1_000_000
    with serve(Noted) as url, closing(call(url)) as caller:
        caller.sendall(head(len(body)) + body)
        assert status_of(caller) == 200
    assert sum(sizes) > 1_000_000
    assert max(sizes) == READ_BYTES


def test_very_many_tiny_chunks_are_one_body(patient: str) -> None:
    body = GOOD + b" " * 20_000
    with closing(call(patient)) as caller:
        caller.sendall(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        assert status_of(caller) == 200


def test_what_came_whole_is_answered_before_what_follows_ends_the_connection(patient: str) -> None:
    request = head(len(GOOD)) + GOOD
    with closing(call(patient)) as caller:
        caller.sendall(request + request + b"no http\r\n\r\n")
        received = b"".join(iter(lambda: caller.recv(65536), b""))
    assert received.count(b"HTTP/1.1 200 OK") == 2
    with closing(call(patient)) as caller:
        caller.sendall(head(len(GOOD)) + GOOD + b"}")  # longer than it says
        assert answer_of(caller)[0] == 200
    with closing(call(patient)) as caller:
        caller.sendall(request + CHUNKED + b"no size\r\n")
        received = b"".join(iter(lambda: caller.recv(65536), b""))
    assert re.findall(rb"HTTP/1.1 (\d+) ", received) == [b"200", b"400"]


@pytest.mark.parametrize(("length", "status"), [(len(GOOD), 200), (99_999_999, 413)])
def test_who_expects_to_be_asked_for_its_body_is_asked_unless_it_is_rejected(
    patient: str, length: int, status: int
) -> None:
    with closing(call(patient)) as caller:
        caller.sendall(head(length, "expect: 100-continue"))
        if status == 200:
            status_line = caller.recv(25, socket.MSG_WAITALL)
            assert status_line == b"HTTP/1.1 100 Continue\r\n\r\n"
            caller.sendall(GOOD)
        assert status_of(caller) == status
    with closing(call(patient)) as caller:  # HTTP/1.0 has no such answer
        old = head(len(GOOD), "expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0")
        caller.sendall(old + GOOD)
        assert caller.recv(13, socket.MSG_WAITALL) == b"HTTP/1.1 200 "


def asks_for(protocol: str) -> tuple[str, ...]:
    more = ("Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    return f"Upgrade: {protocol}", *more


def are_answered(caller: socket.socket, num: int) -> bool:
    received = b""
    while received.count(b"HTTP/1.1 200") < num:
        received += (piece := caller.recv(65536))
        assert piece, received[-500:]
    return True


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0"])
def test_who_asks_for_another_protocol_is_answered_in_this_one(patient: str, protocol: str) -> None:
    for pause_s in (0, 0.05):
        with closing(call(patient)) as caller:
            for _ in range(2):
                caller.sendall(head(len(GOOD), *asks_for(protocol)))
                time.sleep(pause_s)
                caller.sendall(GOOD)
                assert status_of(caller) == 200


def test_requests_sent_ahead_are_answered_after_one_that_asks_for_another_protocol(
    patient: str,
) -> None:
    plain, other = head(len(GOOD)) + GOOD, head(len(GOOD), *asks_for("h2c")) + GOOD
    for sent in (other + plain + plain, plain + other + plain, plain + other + other, other * 3):
        with closing(call(patient)) as caller:
            caller.sendall(sent)
            assert are_answered(caller, 3)


def test_a_request_for_another_protocol_may_be_cut_anywhere(patient: str) -> None:
    request = head(len(GOOD), "x-upgrade: no", "Upgrade: h2c", "Connection: Upgrade") + GOOD
    with closing(call(patient)) as caller:
        for cut in range(1, len(request), 3):
            caller.sendall(request[:cut])
            time.sleep(0.002)
            caller.sendall(request[cut:])
            assert status_of(caller) == 200, request[:cut]


def probes_are_answered(url: str) -> bool:
    """Else an orchestrator would end the server."""
    probes = ("/livez", "/readyz", "/metrics", "/v2/health/ready")
    return all(web.get(f"{url}{path}").status_code == 200 for path in probes)


def test_more_connections_than_the_limit_get_503_and_probes_are_answered_beside_any_number(
    serve: Serve,
) -> None:
    with serve(max_connections=20, body_timeout_s=PATIENCE_S) as url:
        open_ones = [call(url) for _ in range(20)]  # are accepted in this order
        for caller in open_ones:
            caller.sendall(head(len(GOOD)) + GOOD[:-1])  # idle ones would make room
        for path, is_v2 in (("/v1/infer", False), ("/v2/models/notebook/infer", True)):
            with closing(call(url)) as caller:
                caller.sendall(head(len(GOOD), path=path) + GOOD)
                status, body = answer_of(caller)
            assert status == 503
            words = body["error"] if is_v2 else body["error"]["message"]
            assert words == "20 connections are open, the limit; retry in 1 s"
        assert all(probes_are_answered(url) for _ in range(3))
        open_ones += [call(url) for _ in range(60)]  # twice the limit, and again as many
        for caller in open_ones[20:60]:
            assert is_closed(caller)  # those over the limit that came first
        assert all(probes_are_answered(url) for _ in range(3))
        for caller in open_ones:
            caller.close()

        def is_served() -> bool:
            with suppress(httpx.TransportError):
                return good(url)
            return False

        assert eventually(is_served)


def test_connections_that_ask_for_nothing_keep_nobody_out(serve: Serve) -> None:
    """Not even while they may still send a head, which takes them no key."""
    with serve(max_connections=20, body_timeout_s=PATIENCE_S) as url:
        idle = [call(url) for _ in range(20)]

        def is_served() -> bool:
            with closing(call(url)) as caller:
                caller.sendall(head(len(GOOD)) + GOOD)
                return status_of(caller) == 200

        assert eventually(is_served)
        assert is_closed(idle[0])
        for caller in idle:
            caller.close()


def test_who_was_answered_makes_room_once_idle(serve: Serve) -> None:
    made = list[Connection]()
    probe = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    with serve(noted(made), max_connections=1) as url, closing(call(url)) as caller:
        caller.sendall(probe)
        assert status_of(caller) == 200
        (first,) = made
        assert eventually(lambda: first in first.idle)
        first.idle_since -= SILENT_S
        with closing(call(url)) as other:
            other.sendall(head(len(GOOD)) + GOOD)
            assert status_of(other) == 200
        assert is_closed(caller)


PAGE = b"GET /swagger/swagger-ui-bundle.js HTTP/1.1\r\nhost: x\r\n\r\n"  # of 1.7 MB


@contextmanager
def not_taking(url: str, request: bytes) -> Iterator[socket.socket]:
    with closing(socket.socket()) as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.settimeout(PATIENCE_S)
        caller.connect(("127.0.0.1", port_of(url)))
        caller.sendall(request)
        yield caller


def test_a_page_that_is_not_taken_is_held_in_pieces(serve: Serve) -> None:
    made = list[Connection]()
    with serve(noted(made)) as url, not_taking(url, PAGE):
        assert eventually(lambda: len(made) == 1 and made[0].flow.write_paused)
        assert made[0].transport.get_write_buffer_size() <= SENT_BYTES


def test_who_does_not_take_what_needs_no_key_makes_room_before_idle_callers(serve: Serve) -> None:
    """However many pages it asks for on a connection."""
    made, key = list[Connection](), "ask-0123456789abcdef"
    bearer = f"authorization: Bearer {key}"
    keys = SecretStr(f"asker infer {key}")
    with serve(noted(made), max_connections=4, api_keys=keys) as url, ExitStack() as stack:
        kept = stack.enter_context(closing(call(url)))
        kept.sendall(head(len(GOOD), bearer) + GOOD)
        assert status_of(kept) == 200
        computed = stack.enter_context(not_taking(url, head(len(LARGE), bearer) + LARGE))
        assert eventually(lambda: len(made) == 2 and made[1].flow.write_paused)
        pages = []
        for number in (3, 4):
            pages.append(stack.enter_context(not_taking(url, PAGE * 20)))
            assert eventually(
                lambda number=number: len(made) == number and made[-1].flow.write_paused
            )
        for each in made:  # all of them have been there for long, the one that is idle for longest
            each.unread_since -= 2 * SILENT_S
            each.idle_since -= 3 * SILENT_S
        for page in pages:
            new = stack.enter_context(closing(call(url)))
            new.sendall(head(len(GOOD), bearer) + GOOD)
            assert status_of(new) == 200
            assert is_closed(page)
        kept.sendall(head(len(GOOD), bearer) + GOOD)
        assert status_of(kept) == 200
        assert len(one_answer(computed)[1]) > 10**6


def test_a_body_that_the_server_does_not_read_is_not_awaited_from_its_caller(serve: Serve) -> None:
    made, go = list[Connection](), threading.Event()

    async def reads_late(scope: Any, receive: Any, send: Any) -> None:
        await until(go.is_set)
        while (await receive())["type"] != "http.disconnect":
            pass

    class ReadLate(Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.app = reads_late
            made.append(self)

        def sweep(self, now: float) -> None:
            super().sweep(now + 3600.0 * (1 + go.is_set()))

    with serve(ReadLate) as url, ExitStack() as at_end:
        at_end.callback(go.set)
        caller = at_end.enter_context(closing(call(url)))
        caller.sendall(head(200_000, path="/") + b" " * 100_000)
        assert eventually(lambda: bool(made) and made[0].flow.read_paused)
        swept = threading.Event()

        def sweep() -> None:
            made[0].sweep(made[0].loop.time())
            swept.set()

        made[0].loop.call_soon_threadsafe(sweep)
        assert swept.wait(PATIENCE_S)
        assert not made[0].transport.is_closing()
        go.set()
        assert is_closed(caller)  # it is swept


def held(client: httpx.Client, what: str) -> float:
    return samples(client.get("/metrics").text)["addnorm_pending_bytes", (("what", what),)]


def eventually_free(client: httpx.Client, what: str) -> bool:
    return eventually(lambda: held(client, what) == 0)


def not_reading(url: str) -> AbstractContextManager[socket.socket]:
    return not_taking(url, head(len(LARGE)) + LARGE)


def test_a_caller_that_resets_before_its_next_answer_costs_no_traceback(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as url:
        for _ in range(3):
            with closing(call(url)) as caller:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                caller.sendall((head(len(LARGE)) + LARGE) * 3)
                caller.recv(65536)
        with web.client(base_url=url) as client:
            assert eventually_free(client, "responses")
    assert not [record for record in caplog.records if record.exc_info]


def test_an_answer_that_nobody_takes_counts_until_it_is_dropped(serve: Serve) -> None:
    swept = threading.Event()

    class Swept(Connection):
        def sweep(self, now: float) -> None:
            if swept.is_set():
                super().sweep(now)

    with (
        serve(Swept, send_timeout_s=1.5, max_pending_response_bytes=25_000_000) as url,
        web.client(base_url=url, timeout=PATIENCE_S) as client,
    ):
        with not_reading(url) as caller:
            assert caller.recv(12) == b"HTTP/1.1 200"
            assert 7_500_000 < held(client, "responses") < 25_000_000
            refused = client.post("/v1/infer", content=LARGE)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "responses_full"
            assert refused.headers["retry-after"] == "1"
            assert good(url)
            swept.set()
            assert eventually_free(client, "responses")
            assert is_closed(caller)
        assert client.post("/v1/infer", content=LARGE).status_code == 200
        assert held(client, "responses") == 0


def test_bodies_half_received_count_until_they_are_whole_or_gone(serve: Serve) -> None:
    with (
        serve(body_timeout_s=600.0, max_pending_body_bytes=3_400_000) as url,
        web.client(base_url=url, timeout=PATIENCE_S) as client,
        closing(call(url)) as first,
        closing(call(url)) as second,
    ):
        for caller in (first, second):
            caller.sendall(head(1_500_000) + b" " * 1_400_000)
        assert eventually(lambda: held(client, "bodies") == 2_800_000)
        full = client.post("/v1/infer", content=b" " * 500_000)
        assert full.status_code == 429
        assert full.json()["error"]["code"] == "bodies_full"
        assert good(url)
        first.close()
        second.close()
        assert eventually_free(client, "bodies")
        assert client.post("/v1/infer", content=GOOD + b" " * 2_000_000).status_code == 200


def test_a_slow_but_steady_reader_gets_all_of_its_answer(serve: Serve) -> None:
    with serve(send_timeout_s=10.0) as url, not_reading(url) as caller:
        received, end = 0, b""
        while end != b"}}" and (piece := caller.recv(1 << 20)):
            received, end = received + len(piece), (end + piece)[-2:]
        assert received > 7_500_000


def test_all_headers_hide_the_server_and_forbid_sniffing(patient: str) -> None:
    for answer in (
        web.get(f"{patient}/livez"),
        web.get(f"{patient}/docs"),
        web.post(f"{patient}/v1/infer"),
    ):
        assert "server" not in answer.headers
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_new_connections_need_no_round_of_the_event_loop_each(serve: Serve) -> None:
    """All busy connections are served in one round, so rounds may be long."""
    num_rounds, accepted_in = 0, list[int]()
    begun, go, end = threading.Event(), threading.Event(), threading.Event()

    def next_round(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal num_rounds
        num_rounds += 1
        if not end.is_set():
            loop.call_soon(next_round, loop)

    class Held(Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if begun.is_set():
                accepted_in.append(num_rounds)
                return
            begun.set()
            go.wait(PATIENCE_S)  # until many callers wait
            next_round(self.loop)

    with serve(Held) as url, closing(call(url)), ExitStack() as callers:
        assert begun.wait(PATIENCE_S)
        for _ in range(64):
            callers.enter_context(closing(call(url)))
        go.set()
        assert eventually(lambda: len(accepted_in) == 64)
        end.set()
    assert len(set(accepted_in)) <= 8
