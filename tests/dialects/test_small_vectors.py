"""Vectors as int8, uint8 and bits over HTTP: one meaning on every route, whatever the company."""

import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest
from openai import OpenAI
from safetensors.numpy import load, save

from addnorm.service.engine.outputs.output import JSON_BYTES_PER_BYTE
from tests.support.texts import D_MODEL, TEXT_MODEL, ids_of

TEXTS = ["Pads are dropped.", "a b c", "padding costs nothing", "a"]
IDS = ids_of(TEXTS)
DTYPES = {"int8": np.int8, "uint8": np.uint8, "binary": np.int8, "ubinary": np.uint8}
OWN = {"model": TEXT_MODEL, "outputs": ["pooled"], "normalize": True}  # its authors' vectors
SAFETENSORS = "application/vnd.safetensors"


def infer(client: httpx.Client, **body: Any) -> Any:
    answer = client.post("/v1/infer", json={**OWN, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["pooled"]


def embed(client: httpx.Client, **body: Any) -> list[Any]:
    answer = client.post("/v1/embeddings", json={"model": TEXT_MODEL, "input": TEXTS, **body})
    assert answer.status_code == 200, answer.text
    return [entry["embedding"] for entry in answer.json()["data"]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_route_and_layout_gives_the_same_numbers(
    text_client: httpx.Client, dtype: str
) -> None:
    numbers = infer(text_client, input_ids=IDS, dtype=dtype)
    assert (
        numbers == embed(text_client, dtype=dtype) == infer(text_client, texts=TEXTS, dtype=dtype)
    )
    assert numbers == [infer(text_client, input_ids=[ids], dtype=dtype)[0] for ids in IDS], "alone"
    width = max(map(len, IDS)) + 3
    grid = [[0] * (width - len(ids)) + ids for ids in IDS] + [[0] * width]
    mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in IDS] + [[0] * width]
    padded = infer(text_client, input_ids=grid, attention_mask=mask, dtype=dtype)
    assert padded[:-1] == numbers
    assert not any(padded[-1]), "zeros for a row of pads"
    coded = embed(text_client, dtype=dtype, encoding_format="base64")
    rows = np.array(numbers, DTYPES[dtype])
    assert [base64.b64decode(text) for text in coded] == [row.tobytes() for row in rows]


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_have_a_byte_for_each_number(text_client: httpx.Client, dtype: str) -> None:
    arrays = {"input_ids": np.concatenate(IDS), "lengths": np.array(list(map(len, IDS)))}
    body = save(arrays, {"request": json.dumps({**OWN, "dtype": dtype})})
    headers = {"content-type": SAFETENSORS, "accept": SAFETENSORS}
    tensor = load(text_client.post("/v1/infer", content=body, headers=headers).content)["pooled"]
    assert tensor.dtype == DTYPES[dtype]
    np.testing.assert_array_equal(tensor, infer(text_client, input_ids=IDS, dtype=dtype))


def test_the_numbers_are_near_the_vectors(text_client: httpx.Client) -> None:
    vectors = np.array(infer(text_client, texts=TEXTS))
    lowest, highest = text_client.get(f"/v1/models/{TEXT_MODEL}").json()["vector_ranges"]
    step = (np.array(highest) - lowest) / 255
    steps = np.array(infer(text_client, texts=TEXTS, dtype="uint8"))
    assert (np.abs(lowest + (steps + 0.5) * step - vectors) <= 0.501 * step).all()
    bits = np.unpackbits(np.array(infer(text_client, texts=TEXTS, dtype="ubinary"), np.uint8), 1)
    np.testing.assert_array_equal(bits, vectors > 0)
    assert text_client.get("/v1/models").json()["data"][0]["vector_ranges"] is None, "they are long"


def test_bits_are_also_of_cut_vectors_and_of_models_without_ranges(
    text_client: httpx.Client,
) -> None:
    cut = np.array(embed(text_client, dimensions=11))
    numbers = np.array(embed(text_client, dimensions=11, dtype="ubinary"), np.uint8)
    np.testing.assert_array_equal(np.unpackbits(numbers, axis=1)[:, :11], cut > 0)
    body = {"model": "notebook", "input_ids": [[1, 3]], "outputs": ["pooled"], "dtype": "binary"}
    assert text_client.post("/v1/infer", json=body | {"pooling": "max"}).status_code == 200


def test_openais_sdk_gets_numbers_where_it_names_the_format(
    text_client: httpx.Client, text_url: str
) -> None:
    """Where it does not name one it takes base64 for float32."""
    with OpenAI(base_url=f"{text_url}/v1", api_key="none") as sdk:
        answer = sdk.embeddings.create(
            model=TEXT_MODEL, input=TEXTS, encoding_format="float", extra_body={"dtype": "int8"}
        )
    assert [entry.embedding for entry in answer.data] == embed(text_client, dtype="int8")


def test_an_answer_of_bytes_is_as_large_as_estimated(text_client: httpx.Client) -> None:
    answer = text_client.post("/v1/infer", json={**OWN, "texts": TEXTS, "dtype": "int8"})
    assert len(answer.content) < len(TEXTS) * D_MODEL * JSON_BYTES_PER_BYTE + 200
