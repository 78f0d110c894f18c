"""Unmodified packages that speak the Open Inference Protocol over gRPC.

grpc_packages.py URL GRPC NAME: asks what the package can ask, and prints whether its tensors have
the bits that the same route over HTTP gives. GRPC is a host and a port.
"""

import asyncio
import sys
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import httpx
import numpy as np

MODEL, OUTPUT = "embedder", "pooled"
IDS = np.array([[1, 3, 4, 0], [5, 6, 7, 2]])
MASK = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
ARRAYS = {"input_ids": IDS, "attention_mask": MASK}


def tritonclient_grpc(address: str) -> Any:
    from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

    client = InferenceServerClient(address)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert not client.is_model_ready("another")
    assert client.get_server_metadata().name == "addnorm"
    names = [output.name for output in client.get_model_metadata(MODEL).outputs]
    assert OUTPUT in names
    config = client.get_model_config(MODEL, as_json=True)["config"]
    assert OUTPUT in [output["name"] for output in config["output"]]
    inputs = _inputs(InferInput)
    refusal = _refusal(lambda: client.infer("another", inputs))
    assert refusal.startswith("StatusCode.NOT_FOUND: model 'another' is not served here"), refusal
    answers = [
        client.infer(MODEL, inputs, outputs=[InferRequestedOutput(OUTPUT)], **options)
        for options in (
            {"client_timeout": 60.0, "headers": {"authorization": "Bearer any-key-will-do"}},
            {"compression_algorithm": "gzip", "timeout": 60_000_000, "request_id": "7"},
        )
    ]
    tensors = [answer.as_numpy(OUTPUT) for answer in answers]
    assert np.array_equal(*tensors)
    statistics = client.get_inference_statistics(MODEL).model_stats[0]
    assert statistics.inference_stats.success.count >= len(answers)
    return tensors[0]


def tritonclient_grpc_stream(address: str) -> Any:
    from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

    got: SimpleQueue[Any] = SimpleQueue()
    outputs = [InferRequestedOutput(OUTPUT)]
    with InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: got.put(error or result), stream_timeout=60)
        for number, model in enumerate((MODEL, "another", MODEL)):
            client.async_stream_infer(
                model, _inputs(InferInput), outputs=outputs, request_id=str(number)
            )
        first, refused, last = (got.get(timeout=60) for _ in range(3))
        client.stop_stream()
    assert "'another' is not served here" in refused.message(), refused
    assert [each.get_response().id for each in (first, last)] == ["0", "2"]
    assert np.array_equal(first.as_numpy(OUTPUT), last.as_numpy(OUTPUT))
    return first.as_numpy(OUTPUT)


def _refusal(call: Callable[[], Any]) -> str:
    from tritonclient.utils import InferenceServerException

    try:
        call()
    except InferenceServerException as error:
        return f"{error.status()}: {error.message()}"
    return "it was answered"


def _inputs(kind: Any) -> list[Any]:
    """Triton's, for both of its clients."""
    made = []
    for name, array in ARRAYS.items():
        made.append(kind(name, list(array.shape), "INT64"))
        made[-1].set_data_from_numpy(array)
    return made


def tritonclient_grpc_aio(address: str) -> Any:
    async def asked() -> Any:
        from tritonclient.grpc import InferInput
        from tritonclient.grpc.aio import InferenceServerClient

        async with InferenceServerClient(address) as client:
            calls = [client.infer(MODEL, _inputs(InferInput)) for _ in range(16)]
            first, *others = [each.as_numpy(OUTPUT) for each in await asyncio.gather(*calls)]
            assert all(np.array_equal(first, other) for other in others)
            return first

    return asyncio.run(asked())


def kserve_grpc(raw: bool) -> Callable[[str], Any]:
    """raw: whether the tensors go as bytes."""

    def call(address: str) -> Any:
        async def asked() -> Any:
            from kserve import InferenceGRPCClient, InferInput, InferRequest

            client = InferenceGRPCClient(address)
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready(MODEL)
            inputs = []
            for name, array in ARRAYS.items():
                inputs.append(InferInput(name, list(array.shape), "INT64"))
                inputs[-1].set_data_from_numpy(array, binary_data=raw)
            answer = await client.infer(InferRequest(MODEL, inputs))
            (found,) = (each for each in answer.outputs if each.name == OUTPUT)
            await client.close()
            return found.as_numpy()

        return asyncio.run(asked())

    return call


GRPC_PACKAGES: dict[str, Callable[[str], Any]] = {
    "tritonclient.grpc": tritonclient_grpc,
    "tritonclient.grpc.aio": tritonclient_grpc_aio,
    "tritonclient.grpc, a stream": tritonclient_grpc_stream,
    "kserve InferenceGRPCClient, raw": kserve_grpc(raw=True),
    "kserve InferenceGRPCClient, contents": kserve_grpc(raw=False),
}


def check(url: str, address: str, name: str) -> str:
    """AssertionError if the package got something else than the route over HTTP gives."""
    inputs = [
        {"name": name, "shape": array.shape, "datatype": "INT64", "data": array.tolist()}
        for name, array in ARRAYS.items()
    ]
    body = {"inputs": inputs, "outputs": [{"name": OUTPUT}]}
    answer = httpx.post(f"{url}/v2/models/{MODEL}/infer", json=body, timeout=60)
    (plain,) = answer.raise_for_status().json()["outputs"]
    expected = np.array(plain["data"], np.float32).reshape(plain["shape"])
    assert np.array_equal(GRPC_PACKAGES[name](address), expected)
    return "worked, bits equal to /v2/models/NAME/infer"


if __name__ == "__main__":
    print(check(*sys.argv[1:]))
