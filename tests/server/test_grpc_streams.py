"""Calls over gRPC that stay open: streams of requests, and watched health."""

import asyncio
import json
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from weakref import ReferenceType, ref

import numpy as np
import pytest
from pydantic import SecretStr

from addnorm.service.models.registry import Models
from addnorm.service.protocols.kserve.over_grpc.messages import message_types
from addnorm.service.server.grpc.grpc_streams import GrpcStreams
from addnorm.service.server.process import Server
from addnorm.service.server.wiring import Service, build
from addnorm.service.settings import Settings
from tests.conftest import OWN
from tests.support.grpc_client import ALONE, GrpcClient, calling, infer_request, inputs, tensors
from tests.support.metrics import value
from tests.support.waiting import PATIENCE_S, eventually, runs_held_up

grpc = pytest.importorskip("grpc")

KEY = "ask-0123456789abcdef"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


def request(number: int = 0, model: str = "notebook") -> bytes:
    ids = np.array([[1, 3, number % 5, 2]])
    return infer_request(model_name=model, id=str(number), **inputs(input_ids=(ids, "INT64")))


def response(answer: Any) -> Any:
    assert not answer.error_message
    return message_types()["inference.ModelInferResponse"].FromString(answer.infer_response)


class Fed:
    """A stream's requests, handed over while it is open."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def put(self, message: bytes | None) -> None:
        self._waiting.put(message)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._waiting.get, None)


def num_open(service: Service) -> int:
    assert service.grpc.streams
    return service.grpc.streams.num_open


def test_each_request_of_a_stream_is_answered_in_order_with_the_bits_of_a_call(
    few: Models,
) -> None:
    with calling(few) as (call, service, _):
        answers = [response(each) for each in call.stream(map(request, range(20)))]
        assert [answer.id for answer in answers] == [str(number) for number in range(20)]
        for number, answer in enumerate(answers[:5]):
            alone = call.method("ModelInfer")(request(number), timeout=PATIENCE_S)
            for name, array in tensors(alone).items():
                assert tensors(answer)[name].tobytes() == array.tobytes()
        counted = {"route": STREAM, "model": "notebook", "status": "200"}
        assert value(service.metrics, "addnorm_requests_total", **counted) == 20
        assert eventually(lambda: num_open(service) == 0)


def test_a_request_that_is_refused_is_told_so_and_the_stream_goes_on(few: Models) -> None:
    sent = [request(0), request(1, "bert"), b"\xff\xff", request(2)]
    with calling(few) as (call, _, _):
        first, unknown, broken, last = call.stream(iter(sent))
        assert (response(first).id, response(last).id) == ("0", "2")
        assert unknown.error_message == call.refused("ModelInfer", model_name="bert").words
        assert broken.error_message.startswith("the message is no inference.ModelInferRequest: ")


def test_a_key_counts_the_requests_of_a_stream_and_is_needed_for_it(few: Models) -> None:
    own = ("authorization", f"Bearer {KEY}")
    with calling(few, api_keys=SecretStr(f"asker infer {KEY} 1")) as (call, service, _):
        with pytest.raises(grpc.RpcError) as caught:
            list(call.stream(iter([request()])))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        fed = Fed()
        answers = call.stream(iter(fed), own)
        fed.put(request(1))
        assert response(next(answers)).id == "1"
        # while a stream waits, its key has no request under way
        assert call("ModelInfer", own, model_name="notebook", **ALONE).outputs
        with runs_held_up(few):
            fed.put(request(2))
            # not asked over gRPC: a call under way would keep the stream's request out
            assert eventually(lambda: service.scheduler.num_busy == 1)
            refused = call.refused("ModelMetadata", own, name="notebook")
            assert refused.code == "RESOURCE_EXHAUSTED"
        assert response(next(answers)).id == "2"
        fed.put(None)


def test_a_request_that_is_refused_unread_is_not_held_while_the_stream_waits() -> None:
    asked, waits = list[ReferenceType[Any]](), asyncio.Event()

    class Refusing:
        parts = SimpleNamespace(settings=Settings())

        def allows(self, caller: Any) -> bool:
            return True

        async def answer(self, method: Any, caller: Any) -> None:
            asked.append(ref(caller))

    class Sender:
        async def read(self) -> bytes:
            if asked:
                waits.set()
                await asyncio.Event().wait()
            return b"large"

    async def run() -> None:
        streams = GrpcStreams(cast(Any, Refusing()))
        stream = asyncio.create_task(
            streams.answer(cast(Any, SimpleNamespace(path="")), cast(Any, Sender()))
        )
        await asyncio.wait_for(waits.wait(), PATIENCE_S)
        assert [held() for held in asked] == [None]
        stream.cancel()

    asyncio.run(run())


def test_a_stream_that_is_cancelled_frees_its_job(few: Models) -> None:
    with calling(few, worker_threads=1) as (call, service, _), runs_held_up(few) as go:
        fed, more = Fed(), Fed()
        first, second = call.stream(iter(fed)), call.stream(iter(more))
        fed.put(request(1))
        assert eventually(lambda: service.scheduler.num_busy == 1)
        for number in (2, 3):
            more.put(request(number))
        assert eventually(lambda: service.scheduler.num_queued_tokens() == 4)
        second.cancel()
        assert eventually(lambda: num_open(service) == service.grpc.calls.in_flight == 1)
        go.set()
        assert response(next(first)).id == "1"
        first.cancel()
        assert eventually(lambda: num_open(service) == service.grpc.calls.in_flight == 0)
        # of the second stream none was computed
        assert value(service.metrics, "addnorm_micro_batch_tokens_sum", model="notebook") == 4
        assert service.request_path.bodies.num_bytes == service.pipeline.responses.num_bytes == 0


def what_ends(answers: Iterator[Any]) -> str:
    """A message about the deadline, or the code that says the same."""
    try:
        return str(next(answers).error_message).partition(":")[0]
    except grpc.RpcError as error:
        return "its code" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else str(error)


def test_the_deadline_of_a_stream_ends_its_request(few: Models) -> None:
    with calling(few) as (call, service, _), runs_held_up(few):
        # the server may be quicker than the caller's own clock
        assert what_ends(call.stream(iter([request()]), timeout=1.0)) in ("deadline", "its code")
        assert eventually(lambda: num_open(service) == service.grpc.calls.in_flight == 0)


def test_a_request_of_a_stream_has_its_own_timeout(few: Models) -> None:
    late = infer_request(
        model_name="notebook", parameters={"timeout": {"int64_param": 50_000}}, **ALONE
    )
    fed = Fed()
    with calling(few) as (call, _, _):
        answers = call.stream(iter(fed), timeout=None)
        with runs_held_up(few):
            fed.put(late)
            assert next(answers).error_message.startswith("deadline: no answer within 0.05 s")
        fed.put(request(7))
        assert response(next(answers)).id == "7"
        fed.put(None)


def test_a_message_over_the_limit_ends_the_stream_in_words(few: Models) -> None:
    with calling(few, max_body_bytes=2000) as (call, service, _):
        answers = call.stream(iter([request(1), bytes(100_000), request(2)]))
        with pytest.raises(grpc.RpcError) as caught:
            list(answers)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in caught.value.details()
        assert eventually(lambda: num_open(service) == 0)


def test_more_streams_than_connections_are_allowed_are_rejected(few: Models) -> None:
    def refusal(answers: Iterator[Any]) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        return str(caught.value.details())

    with calling(few, max_connections=1) as (call, _, _):
        watched, fed = call.watch(), Fed()
        assert next(watched).status == SERVING
        fed.put(request(1))
        answers = call.stream(iter(fed))  # which watchers, who need no key, do not keep out
        assert response(next(answers)).id == "1"
        for more in (call.stream(iter([request()])), call.watch()):
            assert refusal(more).startswith("1 streams over gRPC are open, the limit")
        fed.put(None)
        watched.cancel()


def test_a_stream_without_a_key_keeps_no_other_out(few: Models) -> None:
    own = ("authorization", f"Bearer {KEY}")
    keys = {"api_keys": SecretStr(f"asker infer {KEY}"), "max_connections": 1}
    with calling(few, **keys) as (call, service, _):
        fed = Fed()
        silent = call.stream(iter(fed))
        with pytest.raises(grpc.RpcError) as caught:  # before it has sent a request
            next(silent)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert response(next(call.stream(iter([request(1)]), own))).id == "1"
        counted = {"route": STREAM, "model": "", "status": "401"}
        assert value(service.metrics, "addnorm_requests_total", **counted) == 1
        fed.put(None)


@contextmanager
def other_answers(models: Models) -> Iterator[None]:
    """The model does not give its known answer."""
    target = models.find("notebook").target("fp32")
    run, on_all_cores = target.run, target.run_on_all_cores
    target.run = target.run_on_all_cores = lambda batch: run(batch) + 1
    try:
        yield
    finally:
        target.run, target.run_on_all_cores = run, on_all_cores


def test_a_watcher_is_told_what_changes(few: Models) -> None:
    with calling(few) as (call, _, _):
        watched = call.watch("inference.GRPCInferenceService")
        assert next(watched).status == SERVING
        with other_answers(few):
            assert next(watched).status == NOT_SERVING
        assert next(watched).status == SERVING
        watched.cancel()
        assert next(call.watch("x")).status == SERVICE_UNKNOWN


def test_a_channel_with_grpcs_own_health_checks_follows_the_health(few: Models) -> None:
    config = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": ""},
    }
    states: list[Any] = []
    with calling(few) as (_, service, _):
        address = f"localhost:{service.grpc.port}"
        options = [("grpc.service_config", json.dumps(config))]
        with grpc.insecure_channel(address, options) as channel:
            channel.subscribe(states.append, try_to_connect=True)
            assert eventually(lambda: grpc.ChannelConnectivity.READY in states)
            with other_answers(few):
                assert eventually(lambda: grpc.ChannelConnectivity.TRANSIENT_FAILURE in states)
            assert eventually(lambda: states[-1] is grpc.ChannelConnectivity.READY)


def test_a_signal_ends_streams_that_wait_and_lets_the_others_answer(few: Models) -> None:
    service = build(few, Settings(**{**OWN, "grpc_port": 0, "worker_threads": 1}))
    server = Server(service)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert eventually(lambda: server.started)
    call, fed = GrpcClient(service.grpc.port), Fed()
    watched, waiting = call.watch(), call.stream(iter(Fed()))
    busy = call.stream(iter(fed))
    assert next(watched).status == SERVING
    with runs_held_up(few) as go:
        fed.put(request(1))
        assert eventually(lambda: service.scheduler.num_busy == 1)
        server.handle_exit(signal.SIGTERM, None)
        assert next(watched).status == NOT_SERVING
        go.set()
        assert response(next(busy)).id == "1"
        for stream in (waiting, busy):
            with pytest.raises(grpc.RpcError) as caught:
                next(stream)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert caught.value.details().startswith("the server is shutting down")
        assert not list(watched)
        thread.join(PATIENCE_S)  # far less than the drain may take
        assert not thread.is_alive()
    call.close()
    service.close()
