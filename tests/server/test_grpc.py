"""Calls over gRPC: the keys, limits and deadlines of HTTP, and the end of the server."""

import asyncio
import gc
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pydantic import SecretStr

from addnorm.service.asking.answer import QUICK_BYTES
from addnorm.service.dialects.kserve.over_grpc.grpc_methods import (
    METHODS,
    Answer,
    GrpcMethod,
)
from addnorm.service.dialects.kserve.over_grpc.messages import message_types
from addnorm.service.engine.registry import Models
from addnorm.service.server.accepted import AcceptedConnections
from addnorm.service.server.connection import SILENT_S
from addnorm.service.server.grpc.grpc_calls import GrpcCalls
from addnorm.service.server.grpc.grpc_listener import PING_MS
from addnorm.service.server.process import Server
from addnorm.service.server.wiring import Service
from tests.conftest import service_of
from tests.support import web
from tests.support.grpc_client import ALONE, GrpcClient, calling, refusal
from tests.support.metrics import value
from tests.support.waiting import PATIENCE_S, eventually, runs_held_up, until

grpc = pytest.importorskip("grpc")

KEY, OTHER = "ask-0123456789abcdef", "other-0123456789abcdef"
INFER = "/inference.GRPCInferenceService/ModelInfer"


def test_a_key_is_needed_for_all_but_probes(few: Models) -> None:
    lines = f"asker infer {KEY} 1\nscraper metrics scrape-0123456789abcdef"
    with calling(few, api_keys=SecretStr(lines)) as (call, _, _):
        assert call("ServerLive").live
        assert call("Check").status == 1
        for name in ("ModelInfer", "ModelMetadata", "ModelReady", "ServerMetadata"):
            assert call.refused(name).code == "UNAUTHENTICATED"
        assert "Authorization: Bearer KEY" in call.refused("ModelInfer").words
        scraper = ("authorization", "Bearer scrape-0123456789abcdef")
        assert call.refused("ModelInfer", scraper)[:2] == (
            "PERMISSION_DENIED",
            "the API key 'scraper' is for metrics; this needs infer",
        )
        for metadata in (("authorization", f"Bearer {KEY}"), ("api-key", KEY)):
            assert call("ModelInfer", metadata, model_name="gpt", **ALONE).outputs


@pytest.mark.parametrize("path", [f"{INFER[:-5]}StreamInfer", "/grpc.health.v1.Health/Watch"])
def test_streams_are_not_offered(few: Models, path: str) -> None:
    with calling(few) as (call, _, _), pytest.raises(grpc.RpcError) as caught:
        list(call.channel.stream_stream(path)(iter([b""]), timeout=PATIENCE_S))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_header_that_is_sent_twice_is_refused_as_over_http(few: Models) -> None:
    with calling(few, api_keys=SecretStr(f"asker infer {KEY};other infer {OTHER}")) as (call, _, _):
        keys = [("authorization", f"Bearer {key}") for key in (KEY, OTHER)]
        refused = call.refused("ModelInfer", *keys, model_name="gpt", **ALONE)
        assert refused[:2] == ("INVALID_ARGUMENT", "the header authorization is sent twice")


def test_a_key_has_its_limit_over_both_transports(few: Models) -> None:
    metadata = ("authorization", f"Bearer {KEY}")
    with (
        calling(few, api_keys=SecretStr(f"asker infer {KEY} 1")) as (call, service, url),
        runs_held_up(few),
    ):
        under_way = begun(call, service, metadata)
        refused = call.refused("ModelInfer", metadata, model_name="notebook", **ALONE)
        assert refused.code == "RESOURCE_EXHAUSTED"
        assert refused.metadata["retry-after"] == "1"
        assert refused.metadata["grpc-retry-pushback-ms"] == "1000"
        plain = web.post(f"{url}/v1/infer", json={}, headers=dict([metadata]))
        assert plain.json()["error"]["message"] == refused.words
        under_way.cancel()


def begun(call: GrpcClient, service: Service, *headers: tuple[str, str], **options: Any) -> Any:
    """A call whose run is held up."""
    body = message_types()["inference.ModelInferRequest"](
        model_name="notebook", id="a" * QUICK_BYTES, **ALONE
    )
    under_way = call.method("ModelInfer").future(
        body.SerializeToString(), metadata=headers, **options
    )
    assert eventually(lambda: service.scheduler.num_busy == 1)
    return under_way


def statuses(service: Service, status: str) -> float | None:
    name, labels = "addnorm_requests_total", {"route": INFER, "model": "notebook"}
    return value(service.metrics, name, **labels, status=status)


def test_a_call_that_is_cancelled_frees_its_job(few: Models) -> None:
    with calling(few, worker_threads=1) as (call, service, _), runs_held_up(few) as go:
        first, second = begun(call, service), begun(call, service)
        assert eventually(lambda: service.scheduler.num_queued_tokens() == 5)
        assert (service.gate.total["calls"], service.gate.total["bodies"]) == (2, 0)
        second.cancel()
        assert eventually(lambda: service.grpc.calls.in_flight == 1)
        assert eventually(lambda: statuses(service, "499") == 1)
        go.set()
        assert first.result(timeout=PATIENCE_S).outputs
        assert_first_alone_was_computed(service)


def assert_first_alone_was_computed(service: Service) -> None:
    scheduler = service.scheduler
    assert eventually(lambda: scheduler.num_queued_tokens() == scheduler.num_busy == 0)
    assert value(service.metrics, "addnorm_micro_batch_tokens_sum", model="notebook") == 5
    assert eventually(lambda: service.grpc.calls.in_flight == 0)
    assert not any(service.gate.total.values())


def test_a_calls_own_deadline_is_the_requests(
    few: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "addnorm.access")
    with calling(few, worker_threads=1) as (call, service, _), runs_held_up(few) as go:
        first = begun(call, service)
        with pytest.raises(grpc.RpcError) as caught:
            begun(call, service, timeout=3.0).result()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert eventually(lambda: statuses(service, "504") == 1)

        def lines() -> list[Any]:
            return [record for record in caplog.records if getattr(record, "route", "") == INFER]

        assert eventually(lambda: bool(lines()))
        (entry,) = lines()
        assert entry.code == "deadline_exceeded"
        assert 0 < entry.timeout_ms < 3010
        go.set()
        assert first.result(timeout=PATIENCE_S).outputs
        assert_first_alone_was_computed(service)


def test_a_deadline_that_cannot_be_met_is_told_before_it_passes(few: Models) -> None:
    """What would be late is rejected at once, by the prediction that HTTP has."""
    with calling(few) as (call, _, _):
        target = few.find("notebook").target("fp32")
        tokens_per_s, target.tokens_per_s = target.tokens_per_s, 1e-3
        try:
            refused = call.refused("ModelInfer", model_name="notebook", **ALONE)
        finally:
            target.tokens_per_s = tokens_per_s
        assert refused.code == "DEADLINE_EXCEEDED"
        assert refused.words.startswith("deadline: computing takes about ")


def test_a_full_queue_says_when_to_retry(few: Models) -> None:
    with (
        calling(few, worker_threads=1, max_queue_tokens=6) as (call, service, _),
        runs_held_up(few),
    ):
        under_way = [begun(call, service), begun(call, service)]
        assert eventually(lambda: service.scheduler.num_queued_tokens() == 5)
        refused = call.refused("ModelInfer", model_name="notebook", **ALONE)
        assert refused.code == "RESOURCE_EXHAUSTED"
        assert refused.words.startswith("overloaded: 5 tokens are queued")
        assert int(refused.metadata["retry-after"]) >= 1
        rejections = "addnorm_rejections_total"
        assert eventually(lambda: value(service.metrics, rejections, reason="queue_full") == 1)
        for each in under_way:
            each.cancel()


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_over_the_limit_is_refused_in_words(few: Models, compression: Any) -> None:
    """Also one that is small until it is decompressed."""
    with calling(few, max_body_bytes=2000) as (call, service, _):
        assert call("ModelInfer", model_name="notebook", **ALONE).outputs
        with pytest.raises(grpc.RpcError) as caught:
            call.method("ModelInfer")(bytes(100_000), compression=compression, timeout=PATIENCE_S)
        code, words, _ = refusal(caught.value)
        assert code == "RESOURCE_EXHAUSTED"
        assert "larger than max" in words
        assert eventually(lambda: service.grpc.calls.in_flight == 0)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2: RFC 9113, 4.1."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


@contextmanager
def connected(call: GrpcClient) -> Iterator[socket.socket]:
    """A connection that has sent all that comes before a call."""
    with socket.create_connection(("localhost", call.port), PATIENCE_S) as sock:
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        yield sock


def received(sock: socket.socket, awaited: bytes) -> bytes:
    """What comes until that is in it, or the server closes."""
    data = b""
    while awaited not in data and (piece := sock.recv(4096)):
        data += piece
    return data


def test_callers_may_look_often_whether_their_connection_lives(few: Models) -> None:
    """grpcio allows a ping in 5 minutes, and no two without a call."""
    with calling(few) as (call, _, _), connected(call) as sock:
        for number in range(5):
            ping = b"number %d" % number
            sock.sendall(frame(6, 0, 0, ping))
            assert ping in received(sock, ping)
            time.sleep(1.1 * PING_MS / 1000)
        sock.sendall(frame(6, 0, 0, b"no pause") * 10)
        assert b"too_many_pings" in received(sock, b"too_many_pings")


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_connections_without_a_call_make_room_and_a_call_keeps_its_own(few: Models) -> None:
    with (
        calling(few, max_connections=2) as (call, service, _),
        runs_held_up(few) as go,
        ExitStack() as stack,
    ):
        under_way = begun(call, service)
        silent = [stack.enter_context(connected(call)) for _ in range(6)]
        assert eventually(lambda: sum(map(is_closed, silent)) == 5)
        go.set()
        assert under_way.result(timeout=PATIENCE_S).outputs


@contextmanager
def accepted(listener: socket.socket, num: int) -> Iterator[list[tuple[str, socket.socket]]]:
    """Pairs of a caller's name, as grpcio writes it, and of the caller's end."""
    with ExitStack() as stack:
        pairs = []
        for _ in range(num):
            caller = stack.enter_context(socket.create_connection(listener.getsockname()))
            stack.enter_context(listener.accept()[0])
            pairs.append((f"ipv4:127.0.0.1:{caller.getsockname()[1]}", caller))
        yield pairs


def test_who_has_not_called_for_longest_makes_room_first() -> None:
    connections = AcceptedConnections(limit=4)
    with socket.create_server(("127.0.0.1", 0)) as listener, accepted(listener, 2) as first:
        # calls end later, at the present time
        port, began = listener.getsockname()[1], time.monotonic() - 100
        connections.sweep(port, began)
        with accepted(listener, 2) as more, connections.calling(first[0][0]):
            connections.sweep(port, began + 0.5)
            with accepted(listener, 1) as last:
                callers = [caller for _, caller in (*first, *more, *last)]

                def closed_at(now: float) -> list[int]:
                    connections.sweep(port, now)
                    return [number for number, each in enumerate(callers) if is_closed(each)]

                assert closed_at(began + SILENT_S - 0.01) == []
                assert closed_at(began + SILENT_S) == [1]
                with connections.calling(more[0][0]):
                    pass
                with accepted(listener, 3):  # so many that those of this moment go too
                    assert closed_at(began + SILENT_S + 0.1) == [1, 3]


def test_a_call_ends_once_its_message_is_known_to_be_too_large(few: Models) -> None:
    """Not only once all of it has come, which would be held until then."""
    path = b"/grpc.health.v1.Health/Check"
    head = {b":method": b"POST", b":scheme": b"http", b":path": path, b"te": b"trailers",
            b":authority": b"x", b"content-type": b"application/grpc"}  # fmt: skip
    literals = [b"\0%c%b%c%b" % (len(name), name, len(text), text) for name, text in head.items()]
    with (
        calling(few) as (call, _, _),
        socket.create_connection(("localhost", call.port), PATIENCE_S) as sock,
    ):
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        sock.sendall(frame(1, 4, 1, b"".join(literals)))
        sock.sendall(frame(0, 0, 1, b"\0" + (1 << 30).to_bytes(4, "big") + b"the first of it"))
        answer = b""
        while b"larger than max" not in answer:
            answer += (piece := sock.recv(4096))
            assert piece


def test_more_calls_than_connections_are_allowed_are_rejected(few: Models) -> None:
    with calling(few, max_connections=1) as (call, service, _), runs_held_up(few):
        under_way = begun(call, service)
        refused = call.refused("ModelMetadata", name="notebook")
        assert refused[:2] == (
            "UNAVAILABLE",
            "1 calls over gRPC are in progress, the limit is 1, of which each API key leaves some"
            " to the other keys; retry in 1 s",
        )
        assert call("ServerLive").live
        under_way.cancel()


class Slow:
    """A caller that never sends its message, or never takes the answer."""

    def __init__(self, sends: bool, key: str = "") -> None:
        self._sends, self._key, self.told = sends, key, ("", "")
        self.is_awaited = False  # its message

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        return [("x-request-id", "abc"), ("authorization", f"Bearer {self._key}")]

    def time_remaining(self) -> None:
        return None

    def set_trailing_metadata(self, metadata: Any) -> None: ...

    def done(self) -> bool:
        return False

    async def read(self) -> bytes:
        if not self._sends:
            self.is_awaited = True
            await asyncio.Event().wait()
        return b""

    async def write(self, message: bytes) -> None:
        await asyncio.Event().wait()

    async def abort(self, code: Any, details: str, metadata: Any) -> NoReturn:
        self.told = code.name, details
        raise grpc.aio.AbortError


def told_to(caller: Slow, service: Service, answer: Any) -> tuple[str, str]:
    """What the caller of a method that answers so is told."""
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(service.grpc.calls.answer(GrpcMethod(INFER, answer), caller))
    return caller.told


def test_slow_callers_and_faults_end_in_words(few: Models) -> None:
    async def fails(parts: Any, receive: Any, call: Any) -> Answer:
        raise ZeroDivisionError

    service = service_of(few, body_timeout_s=0.01, send_timeout_s=0.02)
    for sends, answer, status in (
        (False, echo, ("DEADLINE_EXCEEDED", "the message did not arrive within 0.01 s")),
        (True, echo, ("CANCELLED", "the answer was not read within 0.02 s")),
        (True, fails, ("INTERNAL", "internal server error (request id abc)")),
    ):
        assert told_to(Slow(sends), service, answer) == status
    assert service.grpc.calls.in_flight == service.gate.total["responses"] == 0
    service.close()


class Taking(Slow):
    """Takes the answer."""

    async def write(self, message: bytes) -> None:
        self.told = "OK", ""


async def echo(parts: Any, receive: Any, call: Any) -> Answer:
    return Answer(await receive())


def method_of(name: str) -> GrpcMethod:
    (method,) = (each for each in METHODS if each.path.endswith(f"/{name}"))
    return method


def ended(task: "asyncio.Task[None]") -> bool:
    """Whether the call of the task was ended by the server."""
    return task.done() and isinstance(task.exception(), grpc.aio.AbortError)


async def asked(
    calls: GrpcCalls, method: GrpcMethod, *callers: Slow, num_ended: int = 0
) -> list[Any]:
    """Tasks that answer the callers: each is done, or awaits a message. num_ended: so many of them
    are ended by the server, and that is waited for."""
    tasks = [asyncio.create_task(calls.answer(method, caller)) for caller in callers]
    pairs = list(zip(tasks, callers, strict=True))
    await until(lambda: all(task.done() or caller.is_awaited for task, caller in pairs))
    await until(lambda: sum(map(ended, tasks)) >= num_ended)
    for _ in range(50):  # in which no other ends
        await asyncio.sleep(0)
    assert sum(map(ended, tasks)) == num_ended
    return tasks


def test_messages_are_small_but_for_inferences(few: Models) -> None:
    with calling(few) as (call, service, _):
        for method, field in (("Check", "service"), ("ModelMetadata", "name")):
            refused = call.refused(method, **{field: "x" * 4100})
            assert refused[:2] == (
                "RESOURCE_EXHAUSTED",
                "the message has 4103 bytes, the limit is 4096",
            )
        assert eventually(lambda: service.grpc.calls.in_flight == 0)


def test_probes_without_a_message_keep_nobody_out(few: Models) -> None:
    """One message is received at a time: the others are asked nothing, and told of the server."""
    service = service_of(few, api_keys=SecretStr(f"asker infer {KEY}"))
    calls = replace(service.grpc.calls, probe_s=0.1)

    async def run() -> None:
        live, silent, others = method_of("ServerLive"), Slow(sends=False), Taking(False)
        first, second = await asked(calls, live, silent, others)
        assert others.told == ("OK", "")
        assert second.done()
        with pytest.raises(grpc.aio.AbortError):
            await first
        assert silent.told == ("DEADLINE_EXCEEDED", "the message did not arrive within 0.1 s")

    asyncio.run(run())
    assert calls.in_flight == 0
    service.close()


def test_a_message_that_is_slow_counts_as_the_largest_until_it_comes(few: Models) -> None:
    keys = SecretStr(f"asker infer {KEY};other infer {OTHER}")
    limits = {"max_body_bytes": 1000, "max_pending_body_bytes": 10_000}
    service = service_of(few, **limits, api_keys=keys)
    calls, total = replace(service.grpc.calls, quick_s=0.0), service.gate.total

    async def run() -> None:
        method = GrpcMethod(INFER, echo, 1000)
        silent = [Slow(False, KEY) for _ in range(20)]
        tasks = await asked(calls, method, *silent, num_ended=12)
        messages = {caller.told[1].partition(":")[0] for caller in silent if caller.told[1]}
        assert messages == {"overloaded"}
        assert total["bodies"] == 8000
        quick, slow = Taking(True, OTHER), Slow(False, OTHER)
        (first, _) = more = await asked(calls, method, quick, slow)
        assert first.done()
        assert (quick.told, slow.told) == (("OK", ""), ("", ""))
        assert total["bodies"] == 9000
        for task in (*tasks, *more):
            task.cancel()
        await asyncio.gather(*tasks, *more, return_exceptions=True)

    asyncio.run(run())
    assert calls.in_flight == total["bodies"] == total["calls"] == 0
    service.close()


def test_a_key_leaves_calls_to_others(few: Models) -> None:
    keys = SecretStr(f"asker infer {KEY};other infer {OTHER}")
    service = service_of(few, api_keys=keys, max_connections=20)
    # on a busy machine the turns of `asked` take longer than a quick message
    calls = replace(service.grpc.calls, quick_s=3600.0)

    async def run() -> None:
        method, silent = GrpcMethod(INFER, echo, 1000), [Slow(False, KEY) for _ in range(30)]
        # these count for none
        unknown = [Slow(False, "unknown") for _ in range(30)]
        await asked(calls, method, *unknown, num_ended=30)
        tasks = await asked(calls, method, *silent, num_ended=13)
        told = {caller.told for caller in silent if caller.told[0]}
        words = "17 calls over gRPC are in progress, the limit is 20, of which each API key leaves"
        assert told == {("UNAVAILABLE", f"{words} some to the other keys; retry in 1 s")}
        other = Taking(True, OTHER)
        await asked(calls, method, other)
        assert other.told == ("OK", "")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        again = Taking(True, KEY)
        await asked(calls, method, again)
        assert again.told == ("OK", "")

    asyncio.run(run())
    service.close()


class Gone(Slow):
    """Has left when it is told."""

    async def write(self, message: bytes) -> None:
        raise grpc.aio.InternalError

    async def abort(self, code: Any, details: str, metadata: Any) -> NoReturn:
        self.told = code.name, details
        raise grpc.aio.InternalError


def test_a_caller_that_has_left_leaves_no_traceback(
    few: Models, caplog: pytest.LogCaptureFixture
) -> None:
    service = service_of(few)
    caller = Gone(sends=True)
    asyncio.run(service.grpc.calls.answer(GrpcMethod(INFER, echo), caller))
    assert caller.told == ("CANCELLED", "the call ended before the answer")
    assert not caplog.records
    service.close()


def test_a_call_that_ends_while_it_is_answered_leaves_no_traceback(
    few: Models, caplog: pytest.LogCaptureFixture
) -> None:
    """grpcio's own task for the call fails then."""
    service = service_of(few, grpc_port=0)

    async def ends(error: Exception) -> None:
        raise error

    async def run() -> None:
        await service.grpc.start()
        for error in (grpc.aio.InternalError("a batch failed"), ZeroDivisionError("a fault")):
            await asyncio.wait({asyncio.create_task(ends(error))})
            logging.getLogger("grpc._cython.cygrpc").error("raised in core", exc_info=error)
        await service.grpc.stop(0.0)
        gc.collect()

    asyncio.run(run())
    kinds = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert kinds == [ZeroDivisionError] * 2, "a line of grpcio's log, and a task's error"
    service.close()


def test_who_is_not_let_in_is_told_before_the_message_is_read(few: Models) -> None:
    service = service_of(few, api_keys=SecretStr(f"asker infer {KEY}"))
    method = method_of("ModelInfer")
    assert told_to(Slow(sends=False), service, method.answer)[0] == "UNAUTHENTICATED"
    service.close()


def test_a_call_is_counted_and_logged_as_a_request(
    few: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "addnorm.access")
    with calling(few) as (call, service, _):
        call("ServerLive")
        call("ModelInfer", ("x-request-id", "abc"), model_name="notebook", **ALONE)
        assert eventually(lambda: statuses(service, "200") == 1)
        assert value(service.metrics, "addnorm_real_tokens_total", model="notebook") == 5
        (line,) = (record for record in caplog.records if hasattr(record, "route"))
        told: Any = line
        assert (told.request_id, told.method, told.route, told.status) == (
            "abc", "POST", INFER, 200,
        )  # fmt: skip
        assert (told.real_tokens, told.model) == (5, "notebook")
        assert told.infer_ms > 0


def test_it_speaks_tls_with_the_certificate_of_https(
    few: Models, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    with calling(few, cert.read_bytes(), tls_cert=cert, tls_key=key) as (call, _, _):
        assert call("ModelInfer", model_name="notebook", **ALONE).outputs


def test_a_signal_lets_calls_end_those_under_way_and_new_ones(few: Models) -> None:
    service = service_of(few, grpc_port=0, worker_threads=1)
    server = Server(service)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert eventually(lambda: server.started)
    call = GrpcClient(service.grpc.port)
    with runs_held_up(few) as go:
        under_way = begun(call, service)
        server.handle_exit(signal.SIGTERM, None)
        late = begun(call, service)
        assert not server._is_quiet()
        assert call("Check").status == 2
        assert not call("ServerReady").ready
        go.set()
        for each in (under_way, late):
            assert each.result(timeout=PATIENCE_S).outputs
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    call.close()
    service.close()


WITHOUT = "import sys; sys.modules['grpc'] = None; import addnorm.__main__ as a; a.main()"


def test_without_the_package_the_start_ends_in_one_line(small: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, "serve", "--bundles", small, "--grpc-port", "0"],
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert ended.returncode
    assert json.dumps("run `pip install '.[grpc]'` in a clone")[1:-1] in ended.stderr
