"""The end of the server under load: whoever has connected is answered."""

import asyncio
import math
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from addnorm.service.engine.registry import Models
from addnorm.service.server.process import TICKS_PER_S, Server
from addnorm.service.server.wiring import Service
from tests.conftest import service_of, serving
from tests.support import web
from tests.support.grpc_client import ALONE, GrpcClient, infer_request
from tests.support.waiting import PATIENCE_S, eventually

POST = b"POST /v1/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
PROBE = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
CALLERS = 40  # more than are accepted in a round of the event loop


class Held(Server):
    """A server whose event loop can be held up."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()

    @contextmanager
    def told_to_end(self) -> Iterator[None]:
        """What comes meanwhile has arrived before the server looks at the signal."""
        held, go = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            go.wait(PATIENCE_S)

        self.loop.call_soon_threadsafe(hold)
        assert held.wait(PATIENCE_S)
        self.handle_exit(signal.SIGTERM, None)
        yield
        time.sleep(2 / TICKS_PER_S)  # the server looks at the signal before it reads on
        go.set()


@contextmanager
def ending(service: Service) -> Iterator[Held]:
    """The server, which ends by itself once it was told to."""
    server = Held(service)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert eventually(lambda: server.started)
    try:
        yield server
        thread.join(PATIENCE_S)  # far less than the drain may take
        assert not thread.is_alive()
    finally:
        server.should_exit = True
        thread.join()
        service.close()


def connected(server: Server) -> socket.socket:
    address = server.servers[0].sockets[0].getsockname()
    return socket.create_connection(("127.0.0.1", address[1]), PATIENCE_S)


def answer(caller: socket.socket, request: bytes = b"") -> bytes:
    """Head and body."""
    caller.sendall(request)
    with caller.makefile("rb") as received:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = received.readline()
            assert line, "the connection ended without an answer"
            head += line
        _, _, length = head.partition(b"content-length: ")
        return head + received.read(int(length.split()[0]))


@pytest.mark.parametrize("tls", [False, True])
def test_whoever_has_connected_when_the_server_ends_is_answered(
    few: Models, certificate: tuple[Path, Path], tls: bool
) -> None:
    pair = dict(zip(("tls_cert", "tls_key"), certificate, strict=True)) if tls else {}
    context = ssl.create_default_context(cafile=certificate[0])

    def wrapped(caller: socket.socket) -> socket.socket:
        return context.wrap_socket(caller, server_hostname="localhost") if tls else caller

    def ask(caller: socket.socket) -> bytes:
        with wrapped(caller) as own:
            return answer(own, POST)

    with (
        ending(service_of(few, **pair)) as server,
        ThreadPoolExecutor(CALLERS) as callers,
    ):
        idle, kept = wrapped(connected(server)), wrapped(connected(server))
        for connection in (idle, kept):
            assert answer(connection, PROBE).startswith(b"HTTP/1.1 200")
        with server.told_to_end():
            kept.sendall(POST)
            new = [connected(server) for _ in range(CALLERS)]
        answers = [callers.submit(answer, kept)]
        answers += [callers.submit(ask, caller) for caller in new]
        for each in answers:
            assert each.result(PATIENCE_S).startswith(b"HTTP/1.1 400")  # the body is {}
            assert b"connection: close" in each.result()
        assert idle.recv(1) == b""
        idle.close()
        kept.close()


def test_the_drain_waits_for_requests_and_not_for_probes_and_stops_listening_in_any_case(
    few: Models,
) -> None:
    service = service_of(few, grace_s=3 * PATIENCE_S)
    with serving(service) as url:
        assert web.get(f"{url}/livez").status_code == 200
        assert service.app.last_asked == -math.inf, "a probe keeps nothing open"
        web.post(f"{url}/v1/infer", json={})
        assert service.app.last_asked <= time.monotonic()
        server, now = Server(service), time.monotonic()
        server._drain_until = now + 3 * PATIENCE_S
        service.app.last_asked = now + PATIENCE_S  # just now, however long this test takes
        assert not server._is_quiet(), "another request may follow"
        service.app.last_asked = now - PATIENCE_S
        assert server._is_quiet()
        service.app.in_flight += 1
        assert not server._is_quiet()
        server._drain_until -= PATIENCE_S
        assert server._is_quiet(), "a third of the time is gone"
        service.app.in_flight -= 1


def test_calls_over_grpc_that_arrive_as_the_server_ends_are_told_so(few: Models) -> None:
    grpc = pytest.importorskip("grpc")
    with ending(service_of(few, grpc_port=0)) as server:
        client = GrpcClient(server._service.grpc.port)
        assert client("ServerLive").live
        with server.told_to_end():
            method, body = client.method("ModelInfer"), infer_request(**ALONE)
            calls = [method.future(body, timeout=PATIENCE_S) for _ in range(CALLERS)]
        for call in calls:
            error = call.exception(PATIENCE_S)
            assert (error.code(), error.details()) == (
                grpc.StatusCode.UNAVAILABLE,
                "the server is shutting down: send the request to another",
            )
        client.close()
