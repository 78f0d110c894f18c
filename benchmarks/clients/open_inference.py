"""Clients of the Open Inference Protocol, over HTTP and over gRPC."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.clients.rows import (
    KEY,
    MODEL,
    PLAIN,
    TENSORS,
    TEXTS,
    Row,
    Site,
    bits,
    post,
    run,
)

OUTPUT = "pooled"
IDS = np.array([[1, 3, 4, 0], [5, 6, 7, 2]])
MASK = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
ARRAYS = {"input_ids": IDS, "attention_mask": MASK}


def tritonclient_grpc(site: Site) -> Any:
    from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

    client = InferenceServerClient(site.grpc)
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
            {"client_timeout": 60.0, "headers": {"authorization": f"Bearer {KEY}"}},
            {"compression_algorithm": "gzip", "timeout": 60_000_000, "request_id": "7"},
        )
    ]
    tensors = [answer.as_numpy(OUTPUT) for answer in answers]
    assert np.array_equal(*tensors)
    statistics = client.get_inference_statistics(MODEL).model_stats[0]
    assert statistics.inference_stats.success.count >= len(answers)
    return tensors[0]


def _refusal(call: Callable[[], Any]) -> str:
    from tritonclient.utils import InferenceServerException

    try:
        call()
    except InferenceServerException as error:
        return f"{error.status()}: {error.message()}"
    return "it was answered"


def _inputs(kind: Any) -> list[Any]:
    """Triton's, for both of its clients."""
    inputs = []
    for name, array in ARRAYS.items():
        inputs.append(kind(name, list(array.shape), "INT64"))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def tritonclient_grpc_aio(site: Site) -> Any:
    async def send() -> Any:
        from tritonclient.grpc import InferInput
        from tritonclient.grpc.aio import InferenceServerClient

        async with InferenceServerClient(site.grpc) as client:
            calls = [client.infer(MODEL, _inputs(InferInput)) for _ in range(16)]
            first, *rest = [answer.as_numpy(OUTPUT) for answer in await asyncio.gather(*calls)]
            assert all(np.array_equal(first, array) for array in rest)
            return first

    return asyncio.run(send())


def _kserve_inputs(raw: bool) -> list[Any]:
    """raw: whether the tensors go as bytes."""
    from kserve import InferInput

    inputs = [InferInput(name, list(array.shape), "INT64") for name, array in ARRAYS.items()]
    for tensor, array in zip(inputs, ARRAYS.values(), strict=True):
        tensor.set_data_from_numpy(array, binary_data=raw)
    return inputs


def kserve_grpc(raw: bool) -> Callable[[Site], Any]:
    def call(site: Site) -> Any:
        async def send() -> Any:
            from kserve import InferenceGRPCClient, InferRequest

            client = InferenceGRPCClient(site.grpc)
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready(MODEL)
            answer = await client.infer(InferRequest(MODEL, _kserve_inputs(raw)))
            (output,) = (tensor for tensor in answer.outputs if tensor.name == OUTPUT)
            await client.close()
            return output.as_numpy()

        return asyncio.run(send())

    return call


def tritonclient_http(site: Site) -> Any:
    from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

    client = InferenceServerClient(site.url.removeprefix("http://"))
    headers = {"authorization": f"Bearer {KEY}"}
    outputs = [InferRequestedOutput(OUTPUT)]
    return client.infer(MODEL, _inputs(InferInput), outputs=outputs, headers=headers).as_numpy(
        OUTPUT
    )


def tritonclient_texts(site: Site) -> Any:
    from tritonclient.http import InferenceServerClient, InferInput

    texts = InferInput("texts", [len(TEXTS)], "BYTES")
    texts.set_data_from_numpy(np.array([text.encode() for text in TEXTS], object))
    client = InferenceServerClient(site.url.removeprefix("http://"))
    return client.infer(MODEL, [texts], headers={"authorization": f"Bearer {KEY}"}).as_numpy(OUTPUT)


def kserve_rest(raw: bool) -> Callable[[Site], Any]:
    async def send(site: Site) -> Any:
        from kserve import InferenceRESTClient, InferRequest, RESTConfig

        client = InferenceRESTClient(RESTConfig(protocol="v2"))
        assert await client.is_model_ready(
            site.url, MODEL, headers={"authorization": f"Bearer {KEY}"}
        )
        request = InferRequest(MODEL, _kserve_inputs(raw), parameters={"binary_data_output": raw})
        headers = {"authorization": f"Bearer {KEY}"}
        answer = await client.infer(site.url, request, MODEL, headers=headers)
        (output,) = (tensor for tensor in answer.outputs if tensor.name == OUTPUT)
        return output.as_numpy()

    return lambda site: asyncio.run(send(site))


def tensors(site: Site) -> Any:
    inputs = [
        {"name": name, "shape": array.shape, "datatype": "INT64", "data": array.tolist()}
        for name, array in ARRAYS.items()
    ]
    body = {"inputs": inputs, "outputs": [{"name": OUTPUT}]}
    (plain,) = post(site, f"/v2/models/{MODEL}/infer", **body)["outputs"]
    return np.array(plain["data"], np.float32).reshape(plain["shape"])


ROWS = (
    Row("tritonclient", "http infer", TENSORS, tritonclient_http),
    bits("tritonclient", "http infer of texts as BYTES", tritonclient_texts),
    Row("tritonclient", "grpc: health, metadata, config, infer, gzip", TENSORS, tritonclient_grpc),
    Row("tritonclient", "grpc.aio, 16 calls at once", TENSORS, tritonclient_grpc_aio),
    Row("kserve", "InferenceRESTClient, JSON", TENSORS, kserve_rest(raw=False)),
    Row("kserve", "InferenceRESTClient, binary", TENSORS, kserve_rest(raw=True)),
    Row("kserve", "InferenceGRPCClient, raw", TENSORS, kserve_grpc(raw=True)),
    Row("kserve", "InferenceGRPCClient, contents", TENSORS, kserve_grpc(raw=False)),
)

if __name__ == "__main__":
    run(ROWS, {**PLAIN, TENSORS: tensors})
