"""The messages of the Open Inference Protocol over gRPC: the bits and the words of HTTP."""

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from addnorm.service.dialects.kserve.over_grpc import infer_message
from addnorm.service.dialects.kserve.over_grpc.messages import DESCRIPTORS, message_types
from addnorm.service.engine.registry import Models
from addnorm.service.server.wiring import Service
from addnorm.service.settings import Settings
from tests.support import web
from tests.support.grpc_client import (
    ALONE,
    GrpcClient,
    calling,
    infer_request,
    inputs,
    outputs,
    tensors,
)
from tests.support.waiting import PATIENCE_S

grpc = pytest.importorskip("grpc")
json_format = pytest.importorskip("google.protobuf.json_format")

IDS = np.array([[1, 3, 4, 0, 0], [0, 5, 0, 2, 1]])
MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]])


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
    arrays = tensors(answer)
    assert [*arrays] == [output["name"] for output in plain["outputs"]]
    for output in plain["outputs"]:
        expected = np.array(output["data"], np.float32).reshape(output["shape"])
        assert arrays[output["name"]].tobytes() == expected.tobytes()


def test_outputs_come_in_the_order_asked_for_with_the_fingerprint(call: GrpcClient) -> None:
    body = message_types()["inference.ModelInferRequest"](
        model_name="gpt", model_version="1", outputs=outputs(["pooled", "activations"]), **ALONE
    )
    answer, ended = call.method("ModelInfer").with_call(
        body.SerializeToString(), metadata=[("x-request-id", "mine")], timeout=PATIENCE_S
    )
    assert [*tensors(answer)] == ["pooled", "activations"]
    metadata = {each.key: each.value for each in ended.trailing_metadata()}
    assert metadata["x-request-id"] == "mine"
    assert len(metadata["x-addnorm-fingerprint"]) == 32
    assert "infer;dur=" in metadata["server-timing"]


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
        headers = [(each.name, each.datatype, [*each.shape]) for each in getattr(about, place)]
        assert headers == [tuple(each.values()) for each in plain[place]]
    extensions = [*call("ServerMetadata").extensions]
    assert extensions == ["binary_tensor_data", "parameters", "statistics", "model_configuration"]
    assert call("ServerMetadata").version == web.get(f"{url}/v2").json()["version"]
    index = web.post(f"{url}/v2/repository/index", json={}).json()
    assert [model.name for model in call("RepositoryIndex").models] == [
        each["name"] for each in index
    ]


def as_in_json(message: Any) -> Any:
    """The message with protobuf's own reading of it; its 64-bit numbers are texts."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def with_texts(value: Any) -> Any:
    """The same with numbers as texts."""
    if isinstance(value, dict):
        return {name: with_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [with_texts(each) for each in value]
    return str(value) if type(value) is int else value


@pytest.mark.parametrize(("version", "path"), [("", ""), ("1", "/versions/1")])
def test_a_models_configuration_is_that_of_http(
    called: tuple[GrpcClient, Service, str], version: str, path: str
) -> None:
    call, _, url = called
    config = call("ModelConfig", name="gpt", version=version).config
    assert with_texts(as_in_json(config)) == with_texts(
        web.get(f"{url}/v2/models/gpt{path}/config").json()
    )
    assert (
        call.refused("ModelConfig", name="bert").words
        == (web.get(f"{url}/v2/models/bert/config").json()["error"])
    )


@pytest.mark.parametrize(
    ("asked", "path"),
    [({}, "stats"), ({"name": "gpt"}, "gpt/stats"),
     ({"name": "gpt", "version": "1"}, "gpt/versions/1/stats")],
)  # fmt: skip
def test_statistics_are_those_of_http(
    called: tuple[GrpcClient, Service, str], asked: dict[str, str], path: str
) -> None:
    call, _, url = called
    call("ModelInfer", model_name="gpt", **ALONE)
    model_stats = as_in_json(call("ModelStatistics", **asked))["model_stats"]
    plain = web.get(f"{url}/v2/models/{path}").json()["model_stats"]
    for each in plain:
        assert (each.pop("memory_usage"), each.pop("response_stats")) == ([], {})
    assert model_stats == with_texts(plain)
    assert any(int(each["inference_stats"]["success"]["count"]) for each in model_stats)


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService"])
def test_the_health_service_says_whether_it_serves(call: GrpcClient, service: str) -> None:
    assert call("Check", service=service).status == 1
    assert call.refused("Check", service="x")[:2] == (
        "NOT_FOUND",
        "there is no service 'x': send the call to inference.GRPCInferenceService",
    )


HELD = {
    "raw ids": inputs(input_ids=(np.ones((100, 1000)), "INT64")),
    "packed ids": inputs(False, input_ids=(np.ones((100, 1000)), "INT64")),
    "a raw text": {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1]}],
        "raw_input_contents": [(10**6).to_bytes(4, "little") + b"a" * 10**6],
    },
}


@pytest.mark.parametrize("what", HELD)
def test_a_message_counts_as_what_is_held_of_it(what: str) -> None:
    """protobuf's own memory is not traced: it is that of the body's bytes, and 16 a value."""
    body = infer_request(model_name="gpt", **HELD[what])
    gc.collect()
    tracemalloc.start()
    message, request = infer_message.read(body)
    (raw,) = infer_message.contents(message)
    text = str(raw, "utf-8") if request.inputs[0].datatype == "BYTES" else ""
    _, held = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert raw.nbytes >= len(text)
    num_values = 100_000 if what == "packed ids" else 0
    held += 2 * len(body) + 16 * num_values
    assert 0.7 < held / infer_message.held_bytes(body, Settings()) < 1.1


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
    assert compiled == kept, "run `make service/dialects/kserve/over_grpc/messages.binpb`"
