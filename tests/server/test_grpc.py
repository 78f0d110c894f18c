"""The Open Inference Protocol over gRPC: the bits, words, keys and limits of HTTP."""

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from pydantic import SecretStr

from addnorm.service.errors import StartupError
from addnorm.service.models.registry import Models
from addnorm.service.protocols.kserve.over_grpc.grpc_methods import (
    Answer,
    GrpcMethod,
    grpc_methods,
)
from addnorm.service.protocols.kserve.over_grpc.messages import DESCRIPTORS, message_types
from addnorm.service.server.process import Server, check_address
from addnorm.service.server.wiring import Service, build
from addnorm.service.settings import Settings
from tests.conftest import OWN, serving
from tests.support import web
from tests.support.grpc_client import GrpcClient, inputs, outputs, refusal, tensors
from tests.support.metrics import value
from tests.support.waiting import PATIENCE_S, eventually, runs_held_up

grpc = pytest.importorskip("grpc")

IDS = np.array([[1, 3, 4, 0, 0], [0, 5, 0, 2, 1]])
MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]])
ALONE = inputs(input_ids=(np.array([[1, 3, 4, 5, 2]]), "INT64"))
KEY = "ask-0123456789abcdef"
INFER = "/inference.GRPCInferenceService/ModelInfer"


@contextmanager
def calling(
    models: Models, certificate: bytes = b"", **changed: Any
) -> Iterator[tuple[GrpcClient, Service, str]]:
    """A client of a server with these settings, its service and its URL."""
    service = build(models, Settings(**{**OWN, "grpc_port": 0, **changed}))
    with serving(service) as url:
        client = GrpcClient(service.grpc.port, certificate)
        try:
            yield client, service, url
        finally:
            client.close()


@pytest.fixture(scope="module")
def called(few: Models) -> Iterator[tuple[GrpcClient, Service, str]]:
    with calling(few, admin=True) as called:
        yield called


@pytest.fixture(scope="module")
def call(called: tuple[GrpcClient, Service, str]) -> GrpcClient:
    return called[0]


def posted(url: str, **body: Any) -> Any:
    answer = web.post(f"{url}/v2/models/{body.pop('model')}/infer", json=body)
    return answer.json()


def in_json(array: np.ndarray, name: str) -> dict[str, Any]:
    return {"name": name, "shape": array.shape, "datatype": "INT64", "data": array.tolist()}


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    ("ids", "mask"),
    [("INT64", "INT64"), ("INT32", "INT32"), ("INT64", "BOOL"), ("INT64", "UINT8"),
     ("INT64", "FP32")],
)  # fmt: skip
@pytest.mark.parametrize("model", ["gpt", "notebook"])
def test_every_output_has_the_bits_that_it_has_over_http(
    called: tuple[GrpcClient, Service, str], model: str, ids: str, mask: str, raw: bool
) -> None:
    call, _, url = called
    sent = inputs(raw, input_ids=(IDS, ids), attention_mask=(MASK, mask))
    parameters = {"pooling": {"string_param": "mean"}, "normalize": {"bool_param": True}}
    answer = call("ModelInfer", model_name=model, id="7", parameters=parameters, **sent)
    plain = posted(
        url, model=model, inputs=[in_json(IDS, "input_ids"), in_json(MASK, "attention_mask")],
        parameters={"pooling": "mean", "normalize": True},
    )  # fmt: skip
    assert (answer.model_name, answer.model_version, answer.id) == (model, "1", "7")
    found = tensors(answer)
    assert [*found] == [output["name"] for output in plain["outputs"]]
    for output in plain["outputs"]:
        expected = np.array(output["data"], np.float32).reshape(output["shape"])
        assert found[output["name"]].tobytes() == expected.tobytes()


def test_outputs_come_in_the_order_asked_for_with_the_fingerprint(call: GrpcClient) -> None:
    body = message_types()["inference.ModelInferRequest"](
        model_name="gpt", model_version="1", outputs=outputs(["pooled", "activations"]), **ALONE
    )
    answer, ended = call.method("ModelInfer").with_call(
        body.SerializeToString(), metadata=[("x-request-id", "mine")], timeout=PATIENCE_S
    )
    assert [*tensors(answer)] == ["pooled", "activations"]
    told = {each.key: each.value for each in ended.trailing_metadata()}
    assert told["x-request-id"] == "mine"
    assert len(told["x-addnorm-fingerprint"]) == 32
    assert "infer;dur=" in told["server-timing"]


def test_it_says_what_http_says_of_the_server_and_its_models(
    called: tuple[GrpcClient, Service, str],
) -> None:
    call, _, url = called
    assert call("ServerLive").live
    assert call("ServerReady").ready
    assert call("ModelReady", name="gpt", version="1").ready
    assert not call("ModelReady", name="bert").ready
    plain = web.get(f"{url}/v2/models/gpt").json()
    about = call("ModelMetadata", name="gpt")
    assert {name: getattr(about, name) for name in ("name", "platform")} == {
        name: plain[name] for name in ("name", "platform")
    }
    for place in ("inputs", "outputs"):
        found = [(each.name, each.datatype, [*each.shape]) for each in getattr(about, place)]
        assert found == [tuple(each.values()) for each in plain[place]]
    assert [*call("ServerMetadata").extensions] == ["binary_tensor_data", "parameters"]
    assert call("ServerMetadata").version == web.get(f"{url}/v2").json()["version"]
    index = web.post(f"{url}/v2/repository/index", json={}).json()
    assert [each.name for each in call("RepositoryIndex").models] == [
        each["name"] for each in index
    ]


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService"])
def test_the_health_service_says_whether_it_serves(call: GrpcClient, service: str) -> None:
    assert call("Check", service=service).status == 1
    assert call.refused("Check", service="x")[:2] == (
        "NOT_FOUND",
        "there is no service 'x': known is inference.GRPCInferenceService",
    )


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another model": ({"model_name": "bert"}, {"model": "bert"}),
    "another version": ({"model_name": "gpt", "model_version": "7"}, {"model": "gpt/versions/7"}),
    "a parameter of Triton": (
        {"parameters": {"sequence_id": {"int64_param": 1}}},
        {"parameters": {"sequence_id": 1}},
    ),
    "a parameter of another kind": (
        {"parameters": {"normalize": {"string_param": "yes"}}},
        {"parameters": {"normalize": "yes"}},
    ),
    "an unknown output": (
        {"outputs": [{"name": "x"}]},
        {"outputs": [{"name": "x"}]},
    ),
    "a class count": (
        {"outputs": [{"name": "pooled", "parameters": {"classification": {"int64_param": 3}}}]},
        {"outputs": [{"name": "pooled", "parameters": {"classification": 3}}]},
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_mistakes_are_answered_in_the_words_of_http(
    called: tuple[GrpcClient, Service, str], what: str
) -> None:
    call, _, url = called
    over_grpc, over_http = WRONG[what]
    plain = posted(url, **{"model": "gpt", "inputs": [in_json(IDS, "input_ids")], **over_http})
    sent = inputs(input_ids=(IDS, "INT64"))
    refused = call.refused("ModelInfer", **{"model_name": "gpt", **sent, **over_grpc})
    is_about_the_model = "model_name" in over_grpc
    assert refused.code == ("NOT_FOUND" if is_about_the_model else "INVALID_ARGUMENT")
    assert refused.words == plain["error"]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (inputs(input_ids=(np.array([[1, 1000]]), "INT64")),
         "input_ids[0][1] is 1000: ids of gpt/1 are 0 to 999"),
        ({**ALONE, "raw_input_contents": [b"\0" * 8, b""]},
         "raw_input_contents has 2 entries, inputs 1: send one for each, or none and `contents`"),
        ({**inputs(False, input_ids=(IDS, "INT64")), "raw_input_contents": [b""]},
         "input_ids has both contents and raw_input_contents: send one of them"),
        ({**ALONE, "raw_input_contents": [b"\0" * 9]},
         "input_ids has 9 bytes, no multiple of the 8 of INT64"),
        ({"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 2]}]},
         "input_ids has 0 values, its shape [1, 2] 2"),
        ({"inputs": [{"name": "input_ids", "datatype": "BYTES", "shape": [1, 2]}]},
         "input_ids has datatype 'BYTES': send INT64, INT32"),
        ({"inputs": [{"name": "attention_mask", "datatype": "UINT8", "shape": [1, 1],
                      "contents": {"uint_contents": [300]}}]},
         "attention_mask has values in uint_contents that are no UINT8"),
        ({"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 1],
                      "parameters": {"shared_memory_region": {"string_param": "a"}}}]},
         "input_ids: shared memory is not offered"),
        ({}, "inputs lacks input_ids"),
    ],
)  # fmt: skip
def test_what_only_messages_get_wrong_is_said_in_words(
    call: GrpcClient, sent: dict[str, Any], words: str
) -> None:
    assert call.refused("ModelInfer", model_name="gpt", **sent)[:2] == ("INVALID_ARGUMENT", words)


def test_a_body_that_is_no_message_is_rejected(call: GrpcClient) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call.method("ModelInfer")(b"\xff\xff", timeout=PATIENCE_S)
    code, words, _ = refusal(caught.value)
    assert code == "INVALID_ARGUMENT"
    assert words.startswith("the message is no inference.ModelInferRequest: ")


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
        for own in (("authorization", f"Bearer {KEY}"), ("api-key", KEY)):
            assert call("ModelInfer", own, model_name="gpt", **ALONE).outputs


def test_a_key_has_its_limit_over_both_transports(few: Models) -> None:
    own = ("authorization", f"Bearer {KEY}")
    with (
        calling(few, api_keys=SecretStr(f"asker infer {KEY} 1")) as (call, service, url),
        runs_held_up(few),
    ):
        under_way = begun(call, service, own)
        refused = call.refused("ModelInfer", own, model_name="notebook", **ALONE)
        assert refused.code == "RESOURCE_EXHAUSTED"
        assert refused.metadata["retry-after"] == "1"
        assert refused.metadata["grpc-retry-pushback-ms"] == "1000"
        plain = web.post(f"{url}/v1/infer", json={}, headers=dict([own]))
        assert plain.json()["error"]["message"] == refused.words
        under_way.cancel()


def begun(call: GrpcClient, service: Service, *headers: tuple[str, str], **options: Any) -> Any:
    """A call whose run is held up."""
    body = message_types()["inference.ModelInferRequest"](model_name="notebook", **ALONE)
    under_way = call.method("ModelInfer").future(
        body.SerializeToString(), metadata=headers, **options
    )
    assert eventually(lambda: service.scheduler.num_queued_tokens() + service.scheduler.num_busy)
    return under_way


def statuses(service: Service, status: str) -> float | None:
    name, labels = "addnorm_requests_total", {"route": INFER, "model": "notebook"}
    return value(service.metrics, name, **labels, status=status)


def test_a_call_that_is_cancelled_frees_its_job(few: Models) -> None:
    with calling(few, worker_threads=1) as (call, service, _), runs_held_up(few) as go:
        first, second = begun(call, service), begun(call, service)
        assert eventually(lambda: service.scheduler.num_queued_tokens() == 5)
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
    assert service.request_path.bodies.num_bytes == service.pipeline.responses.num_bytes == 0


def test_a_calls_own_deadline_is_the_requests(
    few: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "addnorm.access")
    with calling(few, worker_threads=1) as (call, service, _), runs_held_up(few) as go:
        first = begun(call, service)
        with pytest.raises(grpc.RpcError) as caught:
            begun(call, service, timeout=0.3).result()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert eventually(lambda: statuses(service, "504") == 1)
        (line,) = (each for each in caplog.records if getattr(each, "route", "") == INFER)
        told: Any = line
        assert told.code == "deadline_exceeded"
        assert 0 < told.timeout_ms < 310
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


def test_more_calls_than_connections_are_allowed_are_rejected(few: Models) -> None:
    with calling(few, max_connections=1) as (call, service, _), runs_held_up(few):
        under_way = begun(call, service)
        refused = call.refused("ModelMetadata", name="notebook")
        assert refused[:2] == (
            "UNAVAILABLE",
            "1 calls over gRPC are under way, the limit; retry in 1 s",
        )
        assert call("ServerLive").live
        under_way.cancel()


class Slow:
    """A caller that never sends its message, or never takes the answer."""

    def __init__(self, sends: bool) -> None:
        self._sends, self.told = sends, ("", "")

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        return [("x-request-id", "abc")]

    def time_remaining(self) -> None:
        return None

    def set_trailing_metadata(self, metadata: Any) -> None: ...

    def done(self) -> bool:
        return False

    async def read(self) -> bytes:
        if not self._sends:
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
    async def echo(receive: Any, call: Any) -> Answer:
        return Answer(await receive())

    async def fails(receive: Any, call: Any) -> Answer:
        raise ZeroDivisionError

    service = build(few, Settings(**{**OWN, "body_timeout_s": 0.01, "send_timeout_s": 0.02}))
    assert told_to(Slow(sends=False), service, echo) == (
        "DEADLINE_EXCEEDED",
        "the message did not arrive within 0.01 s",
    )
    assert told_to(Slow(sends=True), service, echo) == (
        "CANCELLED",
        "the answer was not taken within 0.02 s",
    )
    assert told_to(Slow(sends=True), service, fails) == (
        "INTERNAL",
        "internal server error (request id abc)",
    )
    assert service.grpc.calls.in_flight == service.pipeline.responses.num_bytes == 0
    service.close()


def test_who_is_not_let_in_is_told_before_the_message_is_read(few: Models) -> None:
    service = build(few, Settings(**OWN, api_keys=SecretStr(f"asker infer {KEY}")))
    (method,) = (each for each in grpc_methods(service.grpc.calls.parts) if each.path == INFER)
    assert told_to(Slow(sends=False), service, method.answer)[0] == "UNAUTHENTICATED"
    service.readiness.draining = True
    assert told_to(Slow(sends=False), service, method.answer)[0] == "UNAVAILABLE"
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
        (line,) = (each for each in caplog.records if hasattr(each, "route"))
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


def test_a_signal_lets_calls_under_way_end_and_rejects_new_ones(few: Models) -> None:
    service = build(few, Settings(**{**OWN, "grpc_port": 0, "worker_threads": 1}))
    server = Server(service)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert eventually(lambda: server.started)
    call = GrpcClient(service.grpc.port)
    with runs_held_up(few) as go:
        under_way = begun(call, service)
        server.handle_exit(signal.SIGTERM, None)
        refused = call.refused("ModelInfer", model_name="notebook", **ALONE)
        assert refused[:2] == (
            "UNAVAILABLE",
            "the server is shutting down: send the request to another",
        )
        assert not server._is_drained()
        assert call("Check").status == 2
        assert not call("ServerReady").ready
        go.set()
        assert under_way.result(timeout=PATIENCE_S).outputs
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    call.close()
    service.close()


def test_a_port_in_use_ends_the_start_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"ADDNORM_GRPC_PORT={port}: cannot listen there"):
            check_address(Settings(port=0, grpc_port=port))


def test_the_descriptors_are_those_of_the_proto_files(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    folder, made = DESCRIPTORS.parent, tmp_path / "made"
    files = sorted(path.name for path in folder.glob("*.proto"))
    assert protoc.main(["", f"-I{folder}", f"--descriptor_set_out={made}", *files]) == 0
    compiled, kept = (
        {file.name: file for file in FileDescriptorSet.FromString(path.read_bytes()).file}
        for path in (made, DESCRIPTORS)
    )
    assert compiled == kept, "run `make service/protocols/kserve/over_grpc/messages.binpb`"


WITHOUT = "import sys; sys.modules['grpc'] = None; import addnorm.__main__ as a; a.main()"


def test_without_the_package_the_start_ends_in_one_line(small: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, "serve", "--bundles", small, "--grpc-port", "0"],
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert ended.returncode
    assert json.dumps("run `pip install 'addnorm[grpc]'`")[1:-1] in ended.stderr
