"""Texts as a tensor of BYTES: the bits of `/v1/embeddings`, and words for what does not fit."""

import struct
from typing import Any

import httpx
import numpy as np
import pytest

from addnorm.service.engine.registry import Models
from tests.support.grpc_client import calling
from tests.support.grpc_client import tensors as over_grpc
from tests.support.texts import LONG, MAX_TEXT_TOKENS, TEXT_MODEL
from tests.support.v2_bodies import LENGTH, body, tensors

TEXTS = ["Pads are dropped.", "", "padding costs nothing ü"]
PATH = f"/v2/models/{TEXT_MODEL}/infer"


def tensor(texts: Any, name: str = "input_text", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": texts, **more}


def serialized(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def infer(client: httpx.Client, *inputs: Any, **more: Any) -> Any:
    return client.post(PATH, json={"inputs": inputs, **more}).json()


@pytest.fixture(scope="module")
def vectors(text_client: httpx.Client) -> list[list[float]]:
    answer = text_client.post("/v1/embeddings", json={"input": TEXTS, "model": TEXT_MODEL}).json()
    return [entry["embedding"] for entry in answer["data"]]


@pytest.mark.parametrize(
    "sent",
    [
        tensor(TEXTS),
        tensor(TEXTS, "text", shape=[3, 1]),
        tensor([[text] for text in TEXTS], shape=[3, 1]),
    ],
)
def test_texts_in_json_have_the_bits_of_embeddings(
    text_client: httpx.Client, vectors: list[list[float]], sent: Any
) -> None:
    (output,) = infer(text_client, sent)["outputs"]
    assert (output["name"], output["shape"][0]) == ("pooled", len(TEXTS))
    assert np.array_equal(np.reshape(output["data"], output["shape"]), vectors)


def test_texts_as_bytes_have_the_bits_of_embeddings(
    text_client: httpx.Client, vectors: list[list[float]]
) -> None:
    raw = serialized(*(text.encode() for text in TEXTS))
    sent = tensor(TEXTS, parameters={"binary_data_size": len(raw)})
    del sent["data"]
    parts = body([sent], raw, parameters={"binary_data_output": True})
    answer = text_client.post(
        PATH, content=parts[0] + parts[1],
        headers={LENGTH: str(len(parts[0]))},
    )  # fmt: skip
    assert np.array_equal(tensors(answer)["pooled"], np.float32(vectors))


def test_a_grid_for_texts_is_as_wide_as_the_longest(text_client: httpx.Client) -> None:
    outputs = [{"name": "activations"}, {"name": "pooled"}]
    output_list = infer(text_client, tensor(TEXTS), outputs=outputs)["outputs"]
    shown = text_client.post(
        "/v1/tokenize", json={"texts": TEXTS, "model": TEXT_MODEL}
    ).json()["input_ids"]  # fmt: skip
    assert output_list[0]["shape"][:2] == [3, max(map(len, shown))]
    rows = np.reshape(output_list[0]["data"], output_list[0]["shape"])
    assert not rows[1, len(shown[1]) :].any()
    assert rows[1, : len(shown[1])].any()


def test_pairs_are_rows_of_two(text_client: httpx.Client) -> None:
    pairs = [["a", "b c"], ["", "a"]]
    outputs = [{"name": "pooled"}]
    (output,) = infer(
        text_client, tensor(pairs, shape=[2, 2]), outputs=outputs, parameters={"normalize": False}
    )["outputs"]
    native = {"texts": pairs, "model": TEXT_MODEL, "outputs": ["pooled"]}
    answer = text_client.post("/v1/infer", json=native).json()["pooled"]
    assert np.array_equal(np.reshape(output["data"], output["shape"]), answer)


def test_truncate_cuts(text_client: httpx.Client) -> None:
    long = tensor([LONG])
    assert f"({MAX_TEXT_TOKENS})" in infer(text_client, long)["error"]
    assert infer(text_client, long, parameters={"truncate": True})["outputs"]


@pytest.mark.parametrize("raw", [True, False])
def test_texts_over_grpc_have_the_bits_of_embeddings(
    text_models: Models, vectors: list[list[float]], raw: bool
) -> None:
    pytest.importorskip("grpc")
    encoded = [text.encode() for text in TEXTS]
    about: dict[str, Any] = {"name": "text", "shape": [len(TEXTS)], "datatype": "BYTES"}
    if not raw:
        about["contents"] = {"bytes_contents": encoded}
    sent = {"raw_input_contents": [serialized(*encoded)]} if raw else {}
    with calling(text_models) as (call, _, _):
        answer = call("ModelInfer", model_name=TEXT_MODEL, inputs=[about], **sent)
    assert np.array_equal(over_grpc(answer)["pooled"], np.float32(vectors))
