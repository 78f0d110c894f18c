"""The same float32 bits through every protocol. A new protocol is one more row of the table."""

import json
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save

from addnorm.model.presets import PRESETS
from addnorm.service.protocols.codec.safetensors_body import SAFETENSORS
from tests.conftest import Ask

SEQUENCES = [[1, 3, 4, 5, 2], [5], [2, 0, 1]]
Vectors = NDArray[np.float32]


def answered(answer: httpx.Response) -> httpx.Response:
    assert answer.status_code == 200, answer.text
    return answer


def grid() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sequences padded, each row in another place."""
    ids = np.array([[1, 3, 4, 5, 2], [9, 9, 9, 5, 9], [2, 9, 0, 9, 1]])
    mask = np.array([[1, 1, 1, 1, 1], [0, 0, 0, 1, 0], [1, 0, 1, 0, 1]])
    assert [row[real == 1].tolist() for row, real in zip(ids, mask, strict=True)] == SEQUENCES
    return ids, mask


def native_json(client: httpx.Client, model: str) -> Vectors:
    body = {"model": model, "input_ids": SEQUENCES, "outputs": ["pooled"]}
    return np.array(answered(client.post("/v1/infer", json=body)).json()["pooled"], np.float32)


def safetensors(client: httpx.Client, model: str) -> Vectors:
    ids, mask = grid()
    request = {"request": json.dumps({"model": model, "outputs": ["pooled"]})}
    body = save({"input_ids": ids, "attention_mask": mask}, request)
    headers = {"content-type": SAFETENSORS, "accept": SAFETENSORS}
    return load(answered(client.post("/v1/infer", content=body, headers=headers)).content)["pooled"]


def v2_json(client: httpx.Client, model: str) -> Vectors:
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": "INT64", "data": array.tolist()}
        for name, array in zip(("input_ids", "attention_mask"), grid(), strict=True)
    ]
    body = {"inputs": inputs, "outputs": [{"name": "pooled"}]}
    (output,) = answered(client.post(f"/v2/models/{model}/infer", json=body)).json()["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def v2_binary(client: httpx.Client, model: str) -> Vectors:
    ids, mask = grid()
    inputs: list[dict[str, Any]] = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "INT64",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in (("input_ids", ids), ("attention_mask", mask))
    ]
    head = json.dumps(
        {"inputs": inputs, "outputs": [{"name": "pooled", "parameters": {"binary_data": True}}]}
    ).encode()
    headers = {"inference-header-content-length": str(len(head))}
    body = head + ids.tobytes() + mask.tobytes()
    answer = answered(client.post(f"/v2/models/{model}/infer", content=body, headers=headers))
    length = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.content[:length])["outputs"]
    return np.frombuffer(answer.content[length:], "<f4").reshape(output["shape"])


def openai_base64(client: httpx.Client, model: str) -> Vectors:
    body = {"model": model, "input": SEQUENCES, "encoding_format": "base64"}
    data = answered(client.post("/v1/embeddings", json=body)).json()["data"]
    return np.stack([np.frombuffer(b64decode(entry["embedding"]), "<f4") for entry in data])


def openai_float(client: httpx.Client, model: str) -> Vectors:
    data = answered(
        client.post("/v1/embeddings", json={"model": model, "input": SEQUENCES})
    ).json()["data"]
    return np.array([entry["embedding"] for entry in data], np.float32)


PROTOCOLS: dict[str, Callable[[httpx.Client, str], Vectors]] = {
    "native JSON": native_json,
    "safetensors": safetensors,
    "OpenAI base64": openai_base64,
    "OpenAI float": openai_float,
    "V2 JSON": v2_json,
    "V2 binary": v2_binary,
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_gives_the_bits_of_the_sequences_alone(
    client: httpx.Client, ask: Ask, protocol: str, preset: str
) -> None:
    alone = [ask(preset, [sequence], outputs=["pooled"])["pooled"][0] for sequence in SEQUENCES]
    vectors = PROTOCOLS[protocol](client, preset)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(
        vectors.view(np.uint32), np.array(alone, np.float32).view(np.uint32)
    )
