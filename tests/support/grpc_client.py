"""A client of the methods over gRPC, by the messages that the server itself reads and writes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from addnorm.service.dialects.kserve.over_grpc.grpc_methods import HEALTH, INFERENCE
from addnorm.service.dialects.kserve.over_grpc.messages import message_types
from addnorm.service.engine.registry import Models
from addnorm.service.server.wiring import Service
from tests.conftest import service_of, serving
from tests.support.waiting import PATIENCE_S

FIELDS = {
    "BOOL": "bool_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "FP32": "fp32_contents",
}
DTYPES = {"INT64": "<i8", "INT32": "<i4", "UINT8": "u1", "BOOL": "?", "FP32": "<f4"}


class Refused(NamedTuple):
    """What a caller is told instead of an answer."""

    code: str
    words: str
    metadata: dict[str, str]


class GrpcClient:
    def __init__(self, port: int | None, certificate: bytes = b"") -> None:
        import grpc

        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self.port, address = port, f"localhost:{port}"
        self.channel = (
            grpc.secure_channel(address, grpc.ssl_channel_credentials(certificate), options)
            if certificate
            else grpc.insecure_channel(address, options)
        )

    def method(self, name: str) -> Any:
        """To be called with bytes."""
        service, answered = (
            (HEALTH, "grpc.health.v1.HealthCheck")
            if name == "Check"
            else (INFERENCE, f"inference.{name}")
        )
        reads = message_types()[f"{answered}Response"].FromString
        return self.channel.unary_unary(f"/{service}/{name}", response_deserializer=reads)

    def __call__(self, method: str, /, *headers: tuple[str, str], **fields: Any) -> Any:
        kind = "grpc.health.v1.HealthCheck" if method == "Check" else f"inference.{method}"
        body = message_types()[f"{kind}Request"](**fields).SerializeToString()
        return self.method(method)(body, metadata=headers, timeout=PATIENCE_S)

    def refused(self, method: str, /, *headers: tuple[str, str], **fields: Any) -> Refused:
        import grpc

        try:
            answer = self(method, *headers, **fields)
        except grpc.RpcError as error:
            return refusal(error)
        raise AssertionError(f"it was answered: {answer}")

    def close(self) -> None:
        self.channel.close()


def refusal(error: Any) -> Refused:
    metadata = {each.key: each.value for each in error.trailing_metadata() or ()}
    return Refused(error.code().name, error.details(), metadata)


def inputs(raw: bool = True, **arrays: tuple[np.ndarray, str]) -> dict[str, Any]:
    """Fields of a ModelInferRequest: arrays and their datatypes by name."""
    described: list[dict[str, Any]] = [
        {"name": name, "shape": array.shape, "datatype": datatype}
        for name, (array, datatype) in arrays.items()
    ]
    sent = [array.astype(DTYPES[datatype]) for array, datatype in arrays.values()]
    if raw:
        return {"inputs": described, "raw_input_contents": [array.tobytes() for array in sent]}
    for about, array in zip(described, sent, strict=True):
        about["contents"] = {FIELDS[about["datatype"]]: array.reshape(-1).tolist()}
    return {"inputs": described}


def outputs(names: Sequence[str]) -> list[dict[str, str]]:
    return [{"name": name} for name in names]


def infer_request(**fields: Any) -> bytes:
    message: bytes = message_types()["inference.ModelInferRequest"](**fields).SerializeToString()
    return message


def tensors(answer: Any) -> dict[str, np.ndarray]:
    """Every output of a ModelInferResponse."""
    pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
    return {about.name: np.frombuffer(raw, "<f4").reshape(about.shape) for about, raw in pairs}


ALONE = inputs(input_ids=(np.array([[1, 3, 4, 5, 2]]), "INT64"))


@contextmanager
def calling(
    models: Models, certificate: bytes = b"", **changed: Any
) -> Iterator[tuple[GrpcClient, Service, str]]:
    """A client of a server with these settings, its service and its URL."""
    service = service_of(models, grpc_port=0, **changed)
    with serving(service) as url:
        client = GrpcClient(service.grpc.port, certificate)
        try:
            yield client, service, url
        finally:
            client.close()
