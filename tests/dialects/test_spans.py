"""Vectors of ranges: of characters of texts, of places in input_ids."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from addnorm.service.engine.manifest import Pooling

MODEL = "embedder"
TEXT = "pads are dropped, padding costs nothing."
SPANS = [[0, 17], [17, 40], [0, 40], [5, 8]]
TOKENS = [(1, 6), (6, 10), (1, 10), (2, 3)]  # of "[CLS] pads are drop ##ped , padding ..."
IDS, MASK = [[2, 0, 4, 5, 0, 3]], [[1, 0, 1, 1, 0, 1]]


def post(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/infer", json={"model": MODEL, "outputs": ["pooled"], **body})


def pooled(client: httpx.Client, **body: Any) -> list[list[list[float]]]:
    answer = post(client, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["pooled"]  # type: ignore[no-any-return]


def rows(client: httpx.Client, **body: Any) -> np.ndarray:
    answer = client.post("/v1/infer", json={"model": MODEL, "outputs": ["activations"], **body})
    return np.array(answer.json()["activations"][0], np.float32)


POOLINGS: dict[Pooling, Any] = {
    "mean": lambda part: part.mean(0),
    "max": lambda part: part.max(0),
    "first": lambda part: part[0],
    "last": lambda part: part[-1],
}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_characters_choose_the_tokens_that_are_pooled(
    task_client: httpx.Client, pooling: Pooling
) -> None:
    (vectors,) = pooled(task_client, texts=[TEXT], spans=[SPANS], pooling=pooling)
    tokens = rows(task_client, texts=[TEXT])
    expected = [POOLINGS[pooling](tokens[start:end]) for start, end in TOKENS]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    unit = pooled(task_client, texts=[TEXT], spans=[SPANS], pooling=pooling, normalize=True)[0]
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)


def test_a_prompt_is_no_part_of_the_text(task_client: httpx.Client) -> None:
    (vectors,) = pooled(task_client, texts=[TEXT], spans=[SPANS], prompt_name="query")
    tokens = rows(task_client, texts=[TEXT], prompt_name="query")
    expected = [tokens[start + 2 : end + 2].mean(0) for start, end in TOKENS]  # behind "the text"
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_company_and_padding_change_no_bit(task_client: httpx.Client) -> None:
    alone = pooled(task_client, texts=[TEXT], spans=[SPANS])[0]
    texts, spans = ["a b c", TEXT, "the same"], [[[0, 1]], SPANS, []]
    together = pooled(task_client, texts=texts, spans=spans)
    assert together[1:] == [alone, []]
    real = [token for token, is_real in zip(IDS[0], MASK[0], strict=True) if is_real]
    ragged = pooled(task_client, input_ids=[real], spans=[[[0, 2], [1, 4]]])
    padded = pooled(task_client, input_ids=IDS, attention_mask=MASK, spans=[[[0, 3], [1, 6]]])
    assert padded == ragged


def test_tensors_are_the_same_vectors_end_to_end(task_client: httpx.Client) -> None:
    body = {"texts": [TEXT, "a b c"], "spans": [SPANS, [[0, 5]]]}
    plain = pooled(task_client, **body)
    headers = {"accept": "application/vnd.safetensors"}
    sent = {"model": MODEL, "outputs": ["pooled"], **body}
    arrays = load(task_client.post("/v1/infer", json=sent, headers=headers).content)
    assert arrays["pooled.lengths"].tolist() == [4, 1]
    np.testing.assert_array_equal(arrays["pooled"], np.concatenate(plain).astype(np.float32))


CHUNKS, CHUNK_SPANS = [TEXT[:16], TEXT[16:]], [[0, 16], [16, 40]]  # a token begins at 16


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"normalized": True, "task": "retrieval.query"}, {"prompt_name": "query"}),
        ({"input": [{"text": chunk} for chunk in CHUNKS], "dtype": "ubinary"}, {}),
    ],
)
def test_late_chunking_gives_the_vectors_of_spans(
    task_client: httpx.Client, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    body = {"model": MODEL, "input": CHUNKS, "late_chunking": True, "dtype": "float32", **fields}
    normalize = task_client.get(f"/v1/models/{MODEL}").json()["normalize"]
    options |= {"normalize": fields.get("normalized", normalize), "dtype": body["dtype"]}
    (expected,) = pooled(task_client, texts=[TEXT], spans=[CHUNK_SPANS], **options)
    answer = task_client.post("/v1/embeddings", json=body).json()
    assert [entry["embedding"] for entry in answer["data"]] == expected
    assert answer["usage"]["prompt_tokens"] > len(TOKENS)
    alone = task_client.post("/v1/embeddings", json={**body, "late_chunking": False}).json()
    assert all(
        entry["embedding"] != vector for entry, vector in zip(alone["data"], expected, strict=True)
    )


def test_late_chunking_with_other_fields(task_client: httpx.Client) -> None:
    def vectors(**fields: Any) -> Any:
        body = {"model": MODEL, "input": CHUNKS, "late_chunking": True, **fields}
        answer = task_client.post("/v1/embeddings", json=body)
        assert answer.status_code == 200, answer.text
        return [entry["embedding"] for entry in answer.json()["data"]]

    whole = np.array(vectors(normalized=False), np.float32)
    short = np.array(vectors(normalized=False, dimensions=5), np.float32)
    np.testing.assert_array_equal(short, whole[:, :5])
    encoded = vectors(normalized=False, encoding_format="base64")
    decoded = [np.frombuffer(base64.b64decode(text), np.float32) for text in encoded]
    np.testing.assert_array_equal(decoded, whole)
    cut = vectors(input=[*CHUNKS, " a" * 60], truncate=True)
    assert len(cut) == 3
